"""Does. The only service that touches devices."""
