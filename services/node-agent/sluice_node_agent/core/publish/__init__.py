"""What the agent publishes about its slices and its node."""
