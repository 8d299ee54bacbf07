"""The inventory service: pulls what nodes have, counts it, serves it."""
