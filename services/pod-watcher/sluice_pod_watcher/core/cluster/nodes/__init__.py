"""Facts about nodes: capacity, pods that affinity terms match, and removal."""
