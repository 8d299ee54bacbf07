"""Pods that are moved: back to what they asked for, and to make room."""
