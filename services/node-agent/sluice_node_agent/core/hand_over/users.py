"""What its ResourceClaims say about the users of a slice."""

from sluice.contracts.messages import Booking


def is_of_claim(booking: Booking) -> bool:
    """Whether a claim itself is the owner: its pods, one or many, are unknown here."""
    return any(claim.uid == booking.owner for claim in booking.resource_claims)
