"""What can be typed, by group of verbs. Each command imports what it needs when it is typed."""
