"""How a slice is created, resized and destroyed, one step at a time."""
