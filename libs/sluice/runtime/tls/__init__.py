"""Certificates and secrets in files: read, checked, and read again when they change."""
