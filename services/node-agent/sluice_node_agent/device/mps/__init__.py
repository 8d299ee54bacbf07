"""MPS control daemons: start, watch, limit and end them."""
