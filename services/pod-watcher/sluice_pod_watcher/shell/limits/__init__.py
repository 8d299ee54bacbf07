"""The limits file: read it and publish its limits."""
