"""Exchanges a reservation for a place that is free now together with a part of what it reserves. A request with a
reservation of several devices, or of several slices, has some of them already and waits for the rest. Something freed
beside them may be all that is missing, but no other search counts reserved parts as free. Without this the pod waits on
for a tenant that need not go; and a movable tenant is moved to the very place that was missing, again and again.

The reservation is not given up first, since its place could be taken in that moment. The new place is booked beside it,
to be had when the reservation is gone (a Grant with `after`), and that it goes follows from this grant (`promised`).
"""

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Grant
from sluice_allocator.core.placement import Place, find_place_on, place_request_of, without_shunned_nodes
from sluice_allocator.core.quotas.quota import forbids_place
from sluice_allocator.core.reservations.aging import ReservationContext
from sluice_allocator.core.state.grant_facts import is_being_revoked, is_exchange, is_gone, standing_promise


def exchange_promise(
    ctx: ReservationContext, request: RequestId, asked: AllocationRequested, freed_on: NodeName | None = None
) -> bool:
    """Book the place that a request can have now instead of its reservation; False where there is none. `freed_on`:
    only if the reservation is on this node, since nothing changed elsewhere.
    """
    promise = standing_promise(ctx, request)
    if promise is None or freed_on not in {None, promise.booking.node} or not _is_all_it_has(ctx, promise):
        return False
    place = _place_there(ctx, promise, request, asked)
    after = (promise.booking.allocation,)
    if place is None or forbids_place(ctx, request, asked.namespace, place.devices, after):
        return False
    ctx.queue.remove(request)
    ctx.grant(ctx.booking_of(request, asked, place), after)
    return True


def _is_all_it_has(ctx: ReservationContext, promise: Grant) -> bool:
    if is_exchange(promise) or is_being_revoked(ctx, promise):
        return False
    own, of_request = promise.booking.allocation, ctx.facts.allocations_of[promise.booking.request]
    return not any(each != own and _may_come_to_be(ctx, each) for each in of_request)


def _may_come_to_be(ctx: ReservationContext, allocation: AllocationId) -> bool:
    return isinstance(ctx.facts.ledger[allocation], Grant) and not is_gone(ctx, allocation)


def _place_there(
    ctx: ReservationContext, promise: Grant, request: RequestId, asked: AllocationRequested
) -> Place | None:
    allocation, node = promise.booking.allocation, promise.booking.node
    snapshot = ctx.shown.get(node)
    if snapshot is None or ctx.cluster.booking(allocation) is None:
        return None
    trial = ctx.cluster.alone(snapshot)
    trial.unbook(allocation)
    with ctx.cluster.peers.without(ctx.cluster.peers.booked_for(request)):
        return find_place_on(
            trial, without_shunned_nodes(place_request_of(asked)), node, ctx.backoff.avoided(request, ctx.now)
        )
