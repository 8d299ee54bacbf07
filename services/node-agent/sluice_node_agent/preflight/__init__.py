"""Checks of a node before an agent runs on it (`sluice-node-agent check`)."""
