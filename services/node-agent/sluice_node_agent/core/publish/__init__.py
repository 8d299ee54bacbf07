"""What the agent publishes of its slices and of its node."""
