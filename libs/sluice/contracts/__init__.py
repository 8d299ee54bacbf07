"""What crosses a process border, and the rules of writing it. Pure: no I/O, no clock, no randomness."""
