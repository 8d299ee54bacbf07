"""Usage over time: what was allocated, used and waited for, per namespace, model and node, in a file of its own."""
