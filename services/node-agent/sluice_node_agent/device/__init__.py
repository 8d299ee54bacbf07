"""The port to GPUs, and its backends."""
