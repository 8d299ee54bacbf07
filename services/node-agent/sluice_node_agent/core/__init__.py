"""Pure: decides what to do, does nothing."""
