"""I/O: carries out the core's instructions."""
