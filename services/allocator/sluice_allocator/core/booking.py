"""Converts a place into the booking of a request."""

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Booking
from sluice_allocator.core.placement import Place
from sluice_allocator.core.state.context import Desk


def booking_of(desk: Desk, request: RequestId, asked: AllocationRequested, place: Place) -> Booking:
    """The booking of a place for a request, under a new allocation id."""
    return Booking(
        allocation=desk.new_allocation(request),
        request=request,
        request_revision=asked.revision,
        source=asked.source,
        owner=asked.owner,
        namespace=asked.namespace,
        name=asked.name,
        node=place.node,
        devices=place.devices,
        room=asked.host.room,
        instead_of=place.instead_of,
        resource_claims=asked.resource_claims,
    )
