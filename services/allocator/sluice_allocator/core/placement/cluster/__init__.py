"""The state of all nodes, GPUs and bookings, kept up to date one fact at a time."""
