"""Commands that show the fleet, one pod, or what happened. They only read."""
