"""Knows. Pulls what nodes have, counts it, serves it."""
