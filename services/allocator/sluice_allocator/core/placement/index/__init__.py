"""Nodes and GPUs grouped so that a search finds what is free, or cheap to free, without a scan."""
