"""Shows: the `sluice` command. Reads the bus, never decides."""
