"""Serves the time quota of shared devices to the processes of their tenants."""
