"""Processes of `sluice up`: started, watched, and stopped with nothing left behind."""
