"""The node agent: the only service that touches devices."""
