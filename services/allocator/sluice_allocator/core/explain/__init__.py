"""Answers to questions: why a request waits, and what would become of a pod."""
