"""Connections to a running system: how it is found, its last values, its agents and its allocator."""
