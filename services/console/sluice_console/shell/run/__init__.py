"""`sluice run`: runs a command on a slice of its own (docs/run.md)."""
