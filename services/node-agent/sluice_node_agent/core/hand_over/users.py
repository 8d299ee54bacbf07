"""What its ResourceClaims say about the users of a slice."""

from sluice.contracts.messages import Booking


def is_shared(booking: Booking) -> bool:
    """Whether pods may use it besides its owner, which are unknown here."""
    return bool(shared_claims(booking))


def shared_claims(booking: Booking) -> tuple[str, ...]:
    """The UIDs of its claims that other pods may use as well."""
    return tuple(claim.uid for claim in booking.resource_claims if claim.shared)
