"""Limits of namespaces: how they are written, and what counts against them."""
