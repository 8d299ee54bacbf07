"""What is on the bus and on the GPUs now: nodes, GPUs, pods and what slices are used for."""
