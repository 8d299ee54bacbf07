"""The allocator's I/O: carries out the core's instructions."""
