"""Pure decisions: events in, instructions out, no I/O."""
