"""Findings of `sluice doctor`, from data that was read before. Pure."""
