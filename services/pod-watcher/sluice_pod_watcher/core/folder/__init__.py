"""A folder of manifests as a source of requests."""
