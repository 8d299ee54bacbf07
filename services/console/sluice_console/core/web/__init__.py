"""Rows of the web page, derived from the last values of the bus, one node or request at a time."""
