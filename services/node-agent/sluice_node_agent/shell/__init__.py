"""I/O: does what the core says."""
