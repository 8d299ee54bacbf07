"""Quotas of namespaces."""
