"""The present state from the bus: nodes, GPUs, pods and the usage of slices."""
