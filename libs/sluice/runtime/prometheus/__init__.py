"""Metrics of this process, and the page that serves them to Prometheus."""
