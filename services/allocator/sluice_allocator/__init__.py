"""Decides. The only service that gives orders."""
