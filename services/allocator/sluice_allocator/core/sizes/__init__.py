"""Shares that are made larger and smaller while they are used."""
