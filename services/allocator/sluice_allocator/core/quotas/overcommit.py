"""Revokes grants that exceed their namespace's limits because several allocators granted at once, or their writer did
not know a limit yet (PROTOCOL §4). The later grant in the ledger is revoked unless it is bound: every process that has
read a grant has read what came before it, so all agree; none binds a grant before that. Bound or adopted grants, and
those older than the limit, are never revoked."""

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Booking, Bound, Closed, Grant, LedgerEntry, QuotaSet
from sluice.contracts.quotas.usage import Usage, total
from sluice_allocator.core.quotas.quota import beyond, usage
from sluice_allocator.core.quotas.retry import QuotaContext
from sluice_allocator.core.state.facts import is_held
from sluice_allocator.core.state.grant_facts import is_exchange, is_promise, written_at


def look_at_binding(ctx: QuotaContext, request: RequestId) -> None:
    for allocation, entry in ctx.facts.entries_of(request).items():
        look_at_booked(ctx, allocation, entry)


def look_at_booked(ctx: QuotaContext, allocation: AllocationId, entry: LedgerEntry) -> None:
    """Track bookings for the overcommit check: unbound grants, and grants adopted after the limit was set."""
    if isinstance(entry, Closed):
        return  # nothing is booked any more
    booking, namespace_usage = entry.booking, ctx.cluster.namespace_usage
    stays_open = True
    if isinstance(entry, Grant) and ctx.facts.bound_to(booking.request) == allocation:
        stays_open = entry.adopted and _is_limited_since(ctx, booking)
    if namespace_usage.is_open(booking.namespace, allocation) == stays_open:
        return
    if not stays_open:
        namespace_usage.settle(booking.namespace, allocation)
    elif ctx.cluster.booking(allocation) is not None:
        namespace_usage.reopen(booking.namespace, allocation)


def look_at_excess(ctx: QuotaContext, allocation: AllocationId) -> None:
    """A grant was read that may exceed a limit: look again at all unbound ones of its namespace. For speed only."""
    entry = ctx.facts.granted(allocation)
    quota = ctx.facts.quotas.get(entry.booking.namespace) if entry is not None else None
    if entry is None or quota is None or entry.adopted:
        return
    if not _is_over(ctx, quota) or not _is_limited_since(ctx, entry.booking):
        return
    for other in ctx.cluster.namespace_usage.opened(entry.booking.namespace):
        booking = ctx.cluster.booking(other)
        if booking is not None:
            ctx.changed_requests[booking.request] = None


def excess(ctx: QuotaContext, grant: Grant) -> str | None:
    """Why an unbound grant is revoked; None where it stays: those stay, in the order of the ledger, that fit beside
    those before them, now and when reserved places are taken. Later ones never count."""
    booking = grant.booking
    quota = ctx.facts.quotas.get(booking.namespace)
    if quota is None:
        return None
    is_bound = isinstance(ctx.facts.bindings.get(booking.request), Bound)
    if is_bound or ctx.outbox.busy(subjects.binding(booking.request)) or not _is_judged(ctx, grant):
        return None
    alone = _is_too_much_for_one(ctx, quota, booking)
    if alone:
        return f"it has more {alone} than namespace {booking.namespace} allows one pod"
    if not _is_over(ctx, quota):
        return None
    for promised in (False, True):
        over = _beyond(ctx, quota, grant, promised=promised)
        if over:
            return f"an earlier grant used up the quota of namespace {booking.namespace} for {over}"
    return None


def _beyond(ctx: QuotaContext, quota: QuotaSet, grant: Grant, *, promised: bool) -> str:
    """What is too much with a grant beside those before it; empty where it stays. As `_standing`."""
    kept, standing = _standing(ctx, quota, promised=promised)
    for each in standing:
        counts = ctx.cluster.usage_of(each.booking.devices)
        over = beyond(quota.total, kept + counts) or _is_too_much_for_one(ctx, quota, each.booking)
        if not over or not _is_judged(ctx, each):
            kept += counts
        elif each is grant:
            return over
    return ""


def may_bind(ctx: QuotaContext, grant: Grant) -> bool:
    """Whether everything written before a grant is known (others' grants, the limit), and no decision to revoke it is
    pending: otherwise it may still turn out to be too much."""
    booking = grant.booking
    is_pending = ctx.outbox.busy(subjects.ledger(booking.node, booking.allocation))
    return not is_pending and written_at(ctx, booking) <= ctx.facts.book_read


def await_reading(ctx: QuotaContext, grant: Grant) -> None:
    """A grant that may not be bound yet is looked at again when everything written before it was read."""
    sequence = written_at(ctx, grant.booking)
    if sequence > ctx.facts.book_read:
        ctx.over_quota.await_reading(sequence, grant.booking.request)


def note_read(ctx: QuotaContext) -> None:
    for request in ctx.over_quota.read(ctx.facts.book_read):
        ctx.changed_requests[request] = None


def _is_over(ctx: QuotaContext, quota: QuotaSet) -> bool:
    return bool(beyond(quota.total, usage(ctx, quota.namespace)))


def _is_too_much_for_one(ctx: QuotaContext, quota: QuotaSet, booking: Booking) -> str:
    return beyond(quota.request, ctx.cluster.usage_of(booking.devices))


def _is_limited_since(ctx: QuotaContext, booking: Booking) -> bool:
    """Whether a booking was written to the ledger after its namespace's limits."""
    limits = subjects.quota(booking.namespace).subject
    sequences = ctx.facts.sequences[Stream.BOOK]
    return booking.namespace in ctx.facts.quotas and written_at(ctx, booking) > sequences.get(limits, 0)


def _is_judged(ctx: QuotaContext, grant: Grant) -> bool:
    """Whether a grant may be revoked: it was decided under these limits, and its pod does not have it."""
    booking = grant.booking
    may_be = not grant.adopted and _is_limited_since(ctx, booking)
    return may_be and not is_held(ctx.facts.requests.get(booking.request), booking.allocation)


def _standing(ctx: QuotaContext, quota: QuotaSet, *, promised: bool) -> tuple[Usage, list[Grant]]:
    """The bound bookings of a namespace, and its other grants, in the order of the ledger: as it is now, or
    (`promised`) when all reserved places are taken and the predecessors are gone."""
    found = ((each, ctx.cluster.booking(each)) for each in ctx.cluster.namespace_usage.opened(quota.namespace))
    opened = {allocation: booking for allocation, booking in found if booking is not None}
    grants = ctx.facts.grants(opened)
    promises = [grant for grant in grants if is_promise(ctx, grant)]
    bound = usage(ctx, quota.namespace) - total(ctx.cluster.usage_of(each.devices) for each in opened.values())
    if not promised:
        return bound, _in_order(ctx, grants, {each.booking.allocation: None for each in promises})
    left_out = {each.booking.allocation: None for each in promises if _has_another(ctx, each)}
    exchanges = [each for each in promises if is_exchange(each) and each.booking.allocation not in left_out]
    left_out |= {each: None for exchange in exchanges for each in exchange.after}
    kept = [promise for promise in promises if promise.booking.allocation not in left_out]
    awaited = {each: None for promise in kept for each in promise.after}  # gone when the reserved place is taken
    for allocation in awaited:
        booking = ctx.cluster.booking(allocation)
        if booking is not None and booking.namespace == quota.namespace and allocation not in opened:
            bound -= ctx.cluster.usage_of(booking.devices)
    return bound, _in_order(ctx, grants, left_out | awaited)


def _in_order(ctx: QuotaContext, grants: list[Grant], but: dict[AllocationId, None]) -> list[Grant]:
    standing = [grant for grant in grants if grant.booking.allocation not in but]
    return sorted(standing, key=lambda grant: written_at(ctx, grant.booking))


def _has_another(ctx: QuotaContext, promise: Grant) -> bool:
    """Whether the request of a reservation has another grant: it will have one of them."""
    return any(not is_promise(ctx, grant) for grant in ctx.facts.grants_of(promise.booking.request))
