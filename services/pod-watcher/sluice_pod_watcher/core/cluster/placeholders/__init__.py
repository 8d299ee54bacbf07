"""Placeholder pods: what an autoscaler sees of the nodes that are missing."""
