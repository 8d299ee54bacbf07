"""I/O: carries out the instructions of the core."""
