"""The agent's pure decisions: no I/O, no clock."""
