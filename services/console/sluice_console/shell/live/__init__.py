"""Connections to a running system: discovery, last values, agents and allocator."""
