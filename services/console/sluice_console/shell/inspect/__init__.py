"""Read-only commands about the fleet, one pod, or the history."""
