"""`sluice run`: a command on a slice of its own, for as long as it runs (docs/run.md)."""
