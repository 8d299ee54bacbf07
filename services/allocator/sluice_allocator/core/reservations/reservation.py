"""Grants to be carried out when others are gone (`after`): whether they are valid, and what they wait for. A reserved
place is booked: no other request gets it meanwhile (PROTOCOL §4)."""

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.placement import Avoid, NoPlace
from sluice_allocator.core.reservations.aging import ReservationContext
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.context import say_why
from sluice_allocator.core.state.grant_facts import (
    comes_after_its_own,
    has_place_now,
    is_being_revoked,
    is_earlier,
    is_exchange,
    is_gone,
    is_in_quarantine,
    is_move,
    is_promise,
    named,
    unfinished,
)

NAMED_MAX = 3  # most of the awaited pods that are named


def not_from_others(ctx: ReservationContext, request: RequestId) -> Avoid:
    """GPUs where no pod has to leave for a request: it failed there, or has a slice being revoked, which counts on its
    node until it is gone: then there may be room, and others would be evicted for nothing."""
    avoid = ctx.backoff.avoided(request, ctx.now)
    for allocation, entry in ctx.facts.entries_of(request).items():
        stays = isinstance(entry, msg.Grant) and not is_being_revoked(ctx, entry)
        if isinstance(entry, msg.Closed) or stays or is_gone(ctx, allocation):
            continue
        node = ctx.cluster.nodes.get(entry.booking.node)
        avoid |= frozenset(gpu.report.uuid for gpu in node.all_gpus) if node is not None else frozenset()
    return avoid


def why_give_up(ctx: ReservationContext, promised: msg.Grant, revision: int) -> str | None:
    """Why a grant that waits for others is invalid; None when valid. `revision`: the request's, 0 if unknown."""
    if not is_promise(ctx, promised) or _was_made(ctx, promised):
        return None
    booking = promised.booking
    if has_place_now(ctx, promised):
        return "another place was free earlier"
    if revision > booking.request_revision:
        return "the request was edited after its place was reserved"
    if ctx.cluster.has_room_beside(booking) and not _takes_over(ctx, promised):
        return "the pods it waited for were resized: its place is free beside them"
    if ctx.cluster.is_out_of_use(booking):
        return f"its reserved place on {booking.node} can no longer be used"
    stuck = _stuck(ctx, promised)
    if stuck:
        return f"its place on {booking.node} could not be freed: {', '.join(_name_of(ctx, each) for each in stuck)}"
    others = (each for each in _promises_of(ctx, booking.request) if each.booking.allocation not in promised.after)
    if any(is_earlier(ctx, other, promised) for other in others):
        return "an earlier place is reserved for it"
    return None


def _takes_over(ctx: ReservationContext, promised: msg.Grant) -> bool:
    """Whether it comes after a place that was kept for it and is ending now: its own, whatever is free beside it."""

    def was_kept(entry: msg.LedgerEntry | None) -> bool:
        was_revoked = isinstance(entry, msg.Revoke) and comes_after_its_own(entry)
        return was_revoked or (isinstance(entry, msg.Grant) and is_move(entry))

    before = (ctx.facts.ledger.get(each) for each in unfinished(ctx, promised))
    return promised.evict and all(was_kept(each) for each in before)


def _was_made(ctx: ReservationContext, promised: msg.Grant) -> bool:
    """Whether its agent has made it (or its pod was bound), so that its predecessors are gone although their last
    statuses are not read yet: its pod may run there, and is not to lose it."""
    booking = promised.booking
    if ctx.facts.bound_to(booking.request) == booking.allocation:
        return True
    return isinstance(ctx.facts.slices.get(booking.allocation), msg.SliceReady | msg.SliceDegraded)


def _stuck(ctx: ReservationContext, promised: msg.Grant) -> tuple[AllocationId, ...]:
    """Predecessors whose pods should have been evicted by now; or that may not be waited for."""
    left = unfinished(ctx, promised)
    if not promised.evict:
        return tuple(each for each in left if is_in_quarantine(ctx, each))
    return tuple(each for each in left if _is_overdue(ctx, ctx.facts.ledger[each]))


def _is_overdue(ctx: ReservationContext, entry: msg.LedgerEntry) -> bool:
    request = request_of(entry)
    done = isinstance(entry, msg.Revoke) or isinstance(ctx.facts.evicted.get(request), msg.EvictionDone)
    return ctx.sparing.is_overdue(request, ctx.now, done=done)


def give_up(ctx: ReservationContext, promised: msg.Grant) -> None:
    """A reservation is revoked: pods that could not be evicted for it are exempt for a while."""
    for each in _stuck(ctx, promised) if promised.evict else ():
        ctx.sparing.failed(request_of(ctx.facts.ledger[each]), ctx.now)
        ctx.sparing.look[each] = None


def _promises_of(ctx: ReservationContext, request: RequestId) -> list[msg.Grant]:
    waived = ctx.facts.waived_by(request)
    grants = (each for each in ctx.facts.grants_of(request) if each.booking.allocation not in waived)
    return [grant for grant in grants if is_promise(ctx, grant) and not is_being_revoked(ctx, grant)]


def look_at_promises_on(ctx: ReservationContext, node: NodeName) -> None:
    """A node's use changed: look again at the requests with reservations there."""
    known = ctx.cluster.nodes.get(node)
    for allocation in known.taken if known is not None else ():
        grant = ctx.facts.granted(allocation)
        if grant is not None and grant.after:
            ctx.changed_requests[grant.booking.request] = None
            _count(ctx, allocation)


def is_about_promises(ctx: ReservationContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> bool:
    """Whether an entry waits for others, did so until now, or is waited for. Most never do."""
    world = ctx.facts
    waits = isinstance(entry, msg.Grant) and bool(entry.after)
    counted = allocation in ctx.promised  # its Grant may have been overwritten before its own write was answered
    return waits or counted or allocation in world.promises or allocation in world.unpromised


def count_promises(ctx: ReservationContext, allocation: AllocationId) -> None:
    """An entry changed: update whether it is a counted reservation, and those that wait for it."""
    grant = ctx.facts.granted(allocation)
    if allocation in ctx.promised or (grant is not None and grant.after):
        _count(ctx, allocation)
    for promise in ctx.facts.promises.get(allocation, ()):
        _count(ctx, promise)


def _count(ctx: ReservationContext, allocation: AllocationId) -> None:
    entry = ctx.facts.ledger.get(allocation)
    if allocation in ctx.assumed:
        return  # counted when it was decided
    if isinstance(entry, msg.Grant) and not entry.evict and is_promise(ctx, entry) and not is_gone(ctx, allocation):
        ctx.promised.count(allocation, ctx.cluster.models_of(entry.booking))
    else:
        ctx.promised.forget(allocation)


def look_at_promises(ctx: ReservationContext, allocation: AllocationId) -> None:
    """An entry changed: look again at its predecessors and successors."""
    for promise in ctx.facts.promises.get(allocation, ()):
        ctx.changed_requests[request_of(ctx.facts.ledger[promise])] = None
        ctx.sparing.look[promise] = None
    entry = ctx.facts.ledger.get(allocation)
    before = dict.fromkeys(ctx.facts.unpromised.pop(allocation, ()))
    for other in {**before, **dict.fromkeys(entry.after if isinstance(entry, msg.Grant) else ())}:
        ctx.sparing.look[other] = None
        if other in ctx.facts.ledger:
            ctx.changed_requests[request_of(ctx.facts.ledger[other])] = None


def say_for_whom_it_waits(
    ctx: ReservationContext, request: RequestId, asked: msg.AllocationRequested, grant: msg.Grant
) -> bool:
    """Publish why a request with a reserved place is not bound yet. False when its place is free."""
    message = for_whom_it_waits(ctx, grant)
    if message is None:
        return False
    reason = ReasonCount(reason=WaitReason.PLACE_BEING_FREED, count=len(unfinished(ctx, grant)), of="slices")
    say_why(ctx, request, asked, message, reason)
    return True


def with_promises(ctx: ReservationContext, why: NoPlace) -> NoPlace:
    """A waiting reason, with how much on these GPUs is reserved for requests that waited longer."""
    named = {each.of for each in why.reasons}
    kept = {model: count for model, count in sorted(ctx.promised.of_model.items()) if model in named}
    if not kept:
        return why
    words = "; ".join(f"{count} x {model}: reserved for pods ahead in the queue" for model, count in kept.items())
    more = tuple(ReasonCount(reason=WaitReason.PLACE_PROMISED, count=n, of=model) for model, n in kept.items())
    return NoPlace(f"{why.message}; {words}", (*why.reasons, *more), why.more)


def for_whom_it_waits(ctx: ReservationContext, grant: msg.Grant) -> str | None:
    """The pods that a grant's place waits for, in a sentence; None when there are none."""
    waited_for = unfinished(ctx, grant)
    if not waited_for:
        return None
    if is_exchange(grant):
        return f"its place on {grant.booking.node} is free, once its earlier reservation there is released"
    names = [_name_of(ctx, each) for each in waited_for[:NAMED_MAX]]
    if grant.evict and names == [f"{grant.booking.namespace}/{grant.booking.name}"]:
        return f"its place on {grant.booking.node} was kept for it when it was evicted, and is being handed over"
    more = f" and {len(waited_for) - NAMED_MAX} more" if len(waited_for) > NAMED_MAX else ""
    how = "to be evicted for it" if grant.evict else "to end"
    return f"its place on {grant.booking.node} is reserved and waits for {', '.join(names)}{more} {how}"


def _name_of(ctx: ReservationContext, allocation: AllocationId) -> str:
    entry = ctx.facts.ledger.get(allocation)
    if entry is None or isinstance(entry, msg.Closed):
        return allocation
    blocked = ctx.facts.evicted.get(entry.booking.request)
    but = f" (cannot be evicted: {blocked.why})" if isinstance(blocked, msg.EvictionBlocked) else ""
    return f"{named(entry)}{but}"
