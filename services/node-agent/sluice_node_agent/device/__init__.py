"""The port to GPUs and what stands behind it."""
