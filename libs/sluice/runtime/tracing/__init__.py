"""Traces of requests (W3C trace context), exported by OpenTelemetry."""
