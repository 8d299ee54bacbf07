"""Usage of pods without a ledger entry: after the broker was wiped, until their nodes are open. A limit counts
bookings, and nodes are opened one after another: the first of them would be filled with pods of namespaces that already
have all they may on the others. So what sources remember counts too, by the least usage of their claims. Before a
source has published all of its requests, its namespaces' usage is unknown.
"""

from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, Claim
from sluice.contracts.quotas.usage import NOTHING, Usage
from sluice_allocator.core.placement import least_usage
from sluice_allocator.core.quotas.retry import QuotaContext


def look_at_held(ctx: QuotaContext, request: RequestId) -> None:
    """A request or the ledger entry of its slice changed: does its source remember a slice without an entry?"""
    asked = ctx.facts.requests.get(request)
    unbooked = ctx.over_quota.unbooked
    held = asked.held if isinstance(asked, AllocationRequested) else None
    if isinstance(asked, AllocationRequested) and held is not None and held.allocation not in ctx.facts.ledger:
        unbooked.put(request, asked.namespace, asked.claims)
        return
    namespace = unbooked.drop(request)
    if namespace is not None and namespace in ctx.facts.quotas:
        ctx.over_quota.wake(namespace)  # what is booked may be less, or nothing


def usage_unbooked(ctx: QuotaContext, namespace: str, but: RequestId | None) -> Usage:
    """The least usage of a namespace's requests without a booking, except `but`."""
    claims_of = ctx.over_quota.unbooked.claims_of.get(namespace)
    if claims_of is None:
        return NOTHING
    models = len(ctx.cluster.models())
    used = ctx.over_quota.unbooked.sum_up(namespace, models, lambda claims: least_of(ctx, claims))
    return used - least_of(ctx, claims_of[but]) if but in claims_of else used


def silent_source(ctx: QuotaContext, request: RequestId | None) -> SourceName | None:
    """The source of a request while it has not published all of its requests in this incarnation of the broker; else
    None.
    """
    asked = ctx.facts.requests.get(request) if request is not None else None
    if not isinstance(asked, AllocationRequested) or asked.source in ctx.facts.sources:
        return None
    return asked.source


def least_of(ctx: QuotaContext, claims: tuple[Claim, ...]) -> Usage:
    """The least usage of such claims, on any GPU of the fleet."""
    models = len(ctx.cluster.models())
    least = ctx.over_quota.known_least(claims, models)
    if least is None:
        least = ctx.over_quota.remember_least(claims, models, least_usage(ctx.cluster, claims))
    return least
