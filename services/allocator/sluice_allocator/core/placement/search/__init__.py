"""Finds the best place for a request."""
