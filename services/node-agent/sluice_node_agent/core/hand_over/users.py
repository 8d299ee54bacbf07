"""What its ResourceClaims say about the users of a slice."""

from sluice.contracts.messages import Booking
from sluice_node_agent.core.journal_records import SliceRecord


def is_of_claim(booking: Booking) -> bool:
    """Whether a claim itself is the owner: its pods, one or many, are unknown here."""
    return any(claim.uid == booking.owner for claim in booking.resource_claims)


def is_unprepared(record: SliceRecord) -> bool:
    """Whether no pod can have its devices: they go through claims alone, and the kubelet holds none of these."""
    return bool(record.booking.resource_claims) and not record.prepared
