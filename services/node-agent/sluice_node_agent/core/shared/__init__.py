"""Shared devices: the MPS daemon of each, its limits and its tenants."""
