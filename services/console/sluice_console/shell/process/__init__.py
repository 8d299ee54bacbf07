"""Processes of `sluice up`: started, supervised, and stopped completely."""
