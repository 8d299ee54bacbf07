"""Pods that must go: for more important ones, and from drained places."""
