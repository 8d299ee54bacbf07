"""Resizing shares in place."""
