"""Evictions: for requests of higher priority, and from drained places."""
