"""Moving pods: back to the requested profile, and to make room."""
