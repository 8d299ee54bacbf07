"""
What pods have, or may have, that no ledger tells of: after the broker was wiped, until their nodes are open.

A limit counts what is booked, and nodes are opened one after another: the first of them would be filled with pods of
namespaces that have all they may have on the others. So what sources remember of their pods counts too, by what such
claims take at least. And before a source has said all of its requests, nobody knows what its namespaces have.

It must not judge; `quotas` does.
"""

from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, Claim
from sluice.contracts.quotas.usage import NOTHING, Usage
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.placement import least_usage


def look_at_held(desk: Desk, request: RequestId) -> None:
    """A request or the ledger's entry of its slice is known anew: does its source remember one beside the ledger?"""
    asked = desk.world.requests.get(request)
    unbooked = desk.over_quota.unbooked
    held = asked.held if isinstance(asked, AllocationRequested) else None
    if isinstance(asked, AllocationRequested) and held is not None and held.allocation not in desk.world.ledger:
        unbooked.put(request, asked.namespace, asked.claims)
        return
    namespace = unbooked.drop(request)
    if namespace is not None and namespace in desk.world.quotas:
        desk.over_quota.wake(namespace)  # what is booked may be less, or nothing


def usage_unbooked(desk: Desk, namespace: str, but: RequestId | None) -> Usage:
    """What requests of a namespace have at least that is not booked, without `but`."""
    claims_of = desk.over_quota.unbooked.claims_of.get(namespace)
    if claims_of is None:
        return NOTHING
    models = len(desk.fleet.models())
    used = desk.over_quota.unbooked.total(namespace, models, lambda claims: least_of(desk, claims))
    return used - least_of(desk, claims_of[but]) if but in claims_of else used


def silent_source(desk: Desk, request: RequestId | None) -> SourceName | None:
    """The source of a request while it has not said all of its requests in this life of the broker; else None."""
    asked = desk.world.requests.get(request) if request is not None else None
    if not isinstance(asked, AllocationRequested) or asked.source in desk.world.sources:
        return None
    desk.over_quota.silent[asked.source] = None
    return asked.source


def least_of(desk: Desk, claims: tuple[Claim, ...]) -> Usage:
    """What such claims count at least, on whichever GPU of the fleet."""
    models = len(desk.fleet.models())
    least = desk.over_quota.known_least(claims, models)
    if least is None:
        least = desk.over_quota.remember_least(claims, models, least_usage(desk.fleet, claims))
    return least
