"""Tickets: the directories without which a pod's containers do not start."""
