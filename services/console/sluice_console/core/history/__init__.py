"""What happened: messages as sentences, the timeline of one request, and how long each step took."""
