"""The queue: waiting requests, their order, and reservations for those that waited long."""
