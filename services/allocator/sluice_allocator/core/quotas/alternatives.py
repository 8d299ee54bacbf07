"""Claims that a request takes instead of its first ones, where those have no place now. Only free places count.
Reservations, evictions and moves are for the first claims: no pod leaves for a second choice."""

from collections.abc import Callable

from msgspec.structs import replace

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested
from sluice_allocator.core.placement import NoPlace, Place, PlaceRequest, alternative_place_requests
from sluice_allocator.core.quotas.quota import forbids_asking, forbids_place
from sluice_allocator.core.quotas.retry import QuotaContext


def find_other(
    ctx: QuotaContext, request: RequestId, asked: AllocationRequested, find: Callable[[PlaceRequest], Place | None]
) -> Place | None:
    """The place of the first alternative with one that its namespace's limits allow; `find` searches."""
    for asking in alternative_place_requests(asked):
        is_allowed = forbids_asking(ctx, request, asked.namespace, asking.claims) is None
        place = find(asking) if is_allowed else None
        if place is not None and not forbids_place(ctx, request, asked.namespace, place.devices):
            return place
    return None


def may_have_other(ctx: QuotaContext, request: RequestId, asked: AllocationRequested) -> bool:
    """Whether its namespace's limits allow an alternative, whatever they say of its first claims."""
    sets = asked.alternatives
    return any(forbids_asking(ctx, request, asked.namespace, claims) is None for claims in sets)


def nor_other(asked: AllocationRequested, why: NoPlace) -> NoPlace:
    """Why the first claims have no place, where the alternatives have none either."""
    count = len(asked.alternatives)
    others = "its alternative has none" if count == 1 else f"none of its {count} alternatives has one"
    return replace(why, message=f"{why.message}; {others} either") if count else why
