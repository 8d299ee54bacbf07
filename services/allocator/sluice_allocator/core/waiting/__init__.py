"""Who waits, whose turn it is, and who is promised a place."""
