"""Reservations for requests that waited long."""
