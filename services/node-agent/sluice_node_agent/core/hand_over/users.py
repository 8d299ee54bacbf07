"""What its ResourceClaims say about the users of a slice."""

from sluice.contracts.messages import Booking


def is_shared(booking: Booking) -> bool:
    """Whether pods may use it besides its owner: they are unknown here, and only the kubelet knows the last."""
    return any(claim.shared for claim in booking.resource_claims)
