"""Messages that cross a process border, and the rules for writing them. Pure: no I/O, no clock, no randomness."""
