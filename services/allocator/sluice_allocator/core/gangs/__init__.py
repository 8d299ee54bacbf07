"""Pods that are granted together or not at all."""
