"""The GPU backend of real nodes, on NVML."""
