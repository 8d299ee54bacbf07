"""Facts about each pod: its record, its request, its slice and its problems."""
