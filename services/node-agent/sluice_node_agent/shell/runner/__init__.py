"""Runs an agent: feeds events to its core and carries out its instructions."""
