"""Finds the pods to evict so that a request has a place."""
