"""Pods as terms of other pods see them: counted per topology domain, and filters of nodes by these counts."""
