"""A place as it is booked for a request. Nothing is decided, and nothing is booked here."""

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Booking
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.placement import Place


def booking_of(desk: Desk, request: RequestId, asked: AllocationRequested, place: Place) -> Booking:
    """A place as it is booked for a request, under an allocation of its own."""
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
    )
