"""Moves a pod: books its new place, evicts it, and gives the place to its replacement.

    the new place is booked    -> a Grant of the old request, `after` its own: `request.eviction_orders` has it evicted
    its replacement asks       -> a Grant of the new request at that place, `after` the kept one, which is then revoked
    no replacement comes       -> the place is given up
    it cannot be evicted       -> the place is given up, and the order to evict is lifted

All of it is derived from the ledger and the requests: the grant itself shows that it keeps a place (`is_move`), so a
restart in the middle and a second allocator come to the same. A pod is moved again only after `move_cooldown_s`,
whatever for, and never before a place is booked for it.

Pods with larger profiles are moved back here too (`substitute: return`); moves for others are in `moves.defragment`."""

import msgspec
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, RequestId, request_named
from sluice_allocator.core.key_index import in_turn
from sluice_allocator.core.moves.state import MoveContext
from sluice_allocator.core.placement import Place, PlaceRequest, find_free, place_request_of
from sluice_allocator.core.quotas.quota import forbids_place
from sluice_allocator.core.state.bus_cache import Entries, RequestFact
from sluice_allocator.core.state.facts import UNUSABLE, is_too_late
from sluice_allocator.core.state.grant_facts import is_earlier, is_gone, is_move, is_promise, kin_of, standing_promise


class Mover(msgspec.Struct, frozen=True):
    """A movable pod, and what it has now."""

    request: RequestId
    asked: msg.AllocationRequested
    booking: msg.Booking


class _Phase(msgspec.Struct, frozen=True):
    why_over: str
    name: str = ""
    limit_s: float = 0.0


def count_move(ctx: MoveContext, allocation: AllocationId) -> None:
    """An entry changed: update whether it keeps a place for a moved pod, or waits for others."""
    grant = ctx.facts.granted(allocation) if not is_gone(ctx, allocation) else None
    if grant is not None and is_move(grant):
        booking = grant.booking
        ctx.moves.stand(allocation, kin_of(booking.source, booking.namespace, booking.name))
    elif ctx.moves.end(allocation):  # whatever the outcome: if the pod still exists, it is left alone for a while
        for other in ctx.facts.allocations_of.get(request_named(allocation), ()):
            ctx.moves.stays_anew(other, ctx.now)
    if grant is not None and not grant.evict and grant.after:
        ctx.moves.promises.setdefault(allocation, None)
    else:
        ctx.moves.promises.pop(allocation, None)


def look_at_movable(ctx: MoveContext, request: RequestId, asked: RequestFact | None, entries: Entries) -> None:
    """A request changed: update which of its allocations is a movable pod's, and since when it stays there."""
    leeway = asked.leeway if isinstance(asked, msg.AllocationRequested) else None
    if leeway is None or not (leeway.movable or leeway.substitute == "return"):
        for allocation in entries if ctx.moves.stays_since else ():
            ctx.moves.leaves(allocation)
        return
    bound = ctx.facts.bound_to(request)
    for allocation, entry in entries.items():
        grant = entry if bound == allocation and isinstance(entry, msg.Grant) and not is_gone(ctx, allocation) else None
        returns = grant is not None and leeway.substitute == "return" and bool(grant.booking.instead_of)
        if returns or (grant is not None and leeway.movable):
            ctx.moves.stays(allocation, ctx.now, returns=returns)
        else:
            ctx.moves.leaves(allocation)


def mover_of(ctx: MoveContext, allocation: AllocationId) -> Mover | None:
    """The pod with an allocation, if it may be moved: bound, ready, and nothing else is done with it."""
    entry = ctx.facts.granted(allocation)
    if allocation not in ctx.moves.stays_since or entry is None or is_gone(ctx, allocation):
        return None
    request, facts = entry.booking.request, ctx.facts
    asked = facts.wanted(request)
    if asked is None or asked.group is not None or facts.bound_to(request) != allocation:
        return None
    if not isinstance(facts.slices.get(allocation), msg.SliceReady):
        return None
    is_evicted = request in facts.evictions or isinstance(facts.evicted.get(request), msg.EvictionDone)
    others = (each for key, each in facts.entries_of(request).items() if key != allocation)
    if is_evicted or request in ctx.committing or not all(isinstance(each, msg.Closed) for each in others):
        return None
    return Mover(request, asked, entry.booking)


def exactly(asked: msg.AllocationRequested) -> PlaceRequest:
    """No pod is moved to another larger profile."""
    return replace(place_request_of(asked), substitute=False)


def has_stayed(ctx: MoveContext, allocation: AllocationId) -> bool:
    return ctx.moves.stays_since[allocation] + ctx.rules.move_cooldown_s <= ctx.now


def move_pods_back(ctx: MoveContext) -> None:
    """Time passed: try a few pods with larger profiles, in turn. No waiting request is overtaken."""
    for allocation in ctx.moves.standing:
        ctx.changed_requests[request_named(allocation)] = None  # their clocks may have run out
    ctx.moves.fill(ctx.now, ctx.rules.moves_per_minute)
    for _ in range(min(ctx.rules.move_tries, len(ctx.moves.returning))):
        for allocation in in_turn(ctx.moves.returning, 1) if may_move_one(ctx) else ():
            _move_back(ctx, allocation)


def may_move_one(ctx: MoveContext) -> bool:
    return ctx.moves.may_move >= 1 and len(ctx.moves.standing) < ctx.rules.moves_at_once


def book_move(ctx: MoveContext, mover: Mover, place: Place) -> bool:
    """Book the new place of a pod; its eviction follows when that is in the ledger. False where limits forbid it."""
    after = (mover.booking.allocation,)
    if forbids_place(ctx, None, mover.asked.namespace, place.devices, after):
        return False
    ctx.moves.may_move -= 1
    ctx.grant(ctx.booking_of(mover.request, mover.asked, place), after, evict=True)
    return True


def exact_place(ctx: MoveContext, mover: Mover) -> Place | None:
    return find_free(ctx.cluster, exactly(mover.asked), ctx.backoff.avoided(mover.request, ctx.now))


def _move_back(ctx: MoveContext, allocation: AllocationId) -> None:
    mover = mover_of(ctx, allocation)
    place = exact_place(ctx, mover) if mover is not None and has_stayed(ctx, allocation) else None
    if mover is None or place is None:
        return
    then, now = ctx.cluster.usage_of(place.devices), ctx.cluster.usage_of(mover.booking.devices)
    if (then.memory_mib, then.compute_permille) < (now.memory_mib, now.compute_permille):
        book_move(ctx, mover, place)


def why_end_move(ctx: MoveContext, grant: msg.Grant, asked: RequestFact | None) -> str | None:
    """Why a place is not kept for a pod that is being moved; None when it is."""
    booking = grant.booking
    heir = _heir(ctx, grant)
    if heir is not None:
        return f"its place was handed over to {heir.namespace}/{heir.name}"
    if is_too_late(ctx, grant):
        return "written before the broker was recreated: no agent will act on it"
    slice_ = ctx.facts.slices.get(booking.allocation)
    if isinstance(slice_, UNUSABLE):
        return f"the slice that it was to move to does not exist: {slice_.message}"
    if ctx.cluster.is_out_of_use(booking):
        return f"its place on {booking.node} can no longer be used"
    if any(is_earlier(ctx, other, grant) for other in _moves_of(ctx, booking.request)):
        return "an earlier place is reserved for it"
    phase = _phase_of(ctx, grant, asked)
    if phase is None:
        return None
    if not phase.limit_s:
        return phase.why_over
    since = ctx.moves.phase_since(booking.allocation, phase.name, ctx.now)
    return f"{phase.why_over} (after {phase.limit_s:.0f} s)" if ctx.now - since >= phase.limit_s else None


def note_phase(ctx: MoveContext, grant: msg.Grant, asked: RequestFact | None) -> None:
    phase = _phase_of(ctx, grant, asked)
    if phase is not None:
        ctx.moves.enter(grant.booking.allocation, phase.name, ctx.now)


def take_over(ctx: MoveContext, request: RequestId, asked: msg.AllocationRequested) -> bool:
    """Give a request without a place the one that is kept for its predecessor, if one fits. True if so. A request with
    a reservation uses that first: otherwise this one would be revoked, and the kept one lost with it."""
    if asked.group is not None or not ctx.moves.kept_for or standing_promise(ctx, request) is not None:
        return False
    for allocation in ctx.moves.kept_for.get(kin_of(asked.source, asked.namespace, asked.name), ()):
        kept = ctx.facts.granted(allocation)
        if kept is None or kept.booking.request == request or _heir(ctx, kept) is not None:
            continue
        place = ctx.place_in(kept.booking, request, exactly(asked), own=[allocation])
        if place is not None and not forbids_place(ctx, request, asked.namespace, place.devices, (allocation,)):
            ctx.grant(ctx.booking_of(request, asked, place), (allocation,), evict=True)
            return True
    return False


def _phase_of(ctx: MoveContext, grant: msg.Grant, asked: RequestFact | None) -> _Phase | None:
    """Whether the pod is going, or need not go, or has gone without a replacement; None while nothing is known."""
    outcome = ctx.facts.evicted.get(grant.booking.request)
    evicted, rules = isinstance(outcome, msg.EvictionDone), ctx.rules
    if isinstance(asked, msg.AllocationRequested):
        if all(is_gone(ctx, each) for each in grant.after):
            return _Phase("its slice is gone, but its pod is not")
        if evicted:
            return _Phase("its pod was evicted and has not ended", "leaving", rules.move_leaving_s)
        if not _has_purpose(ctx, grant, asked):
            return _Phase("the move is no longer needed")
        blocked = f": {outcome.why}" if isinstance(outcome, msg.EvictionBlocked) else ""
        return _Phase(f"its pod could not be evicted{blocked}", "ordered", rules.move_patience_s)
    if not isinstance(asked, msg.RequestWithdrawn):
        return None  # no request (yet): orphans have a rule of their own
    if not evicted and asked.cause == "containers ended":
        return _Phase("its pod ended by itself")
    return _Phase("no replacement of its pod came", "kept", rules.move_kept_s)


def _has_purpose(ctx: MoveContext, grant: msg.Grant, asked: msg.AllocationRequested) -> bool:
    booking, returns = grant.booking, asked.leeway.substitute == "return" and not grant.booking.instead_of
    if returns and any(each.booking.instead_of for each in ctx.facts.grants(grant.after)):
        return True
    others = ctx.facts.grants(other for each in grant.after for other in ctx.facts.promises.get(each, ()))
    return any(promise.booking.request != booking.request for promise in others)


def _heir(ctx: MoveContext, kept: msg.Grant) -> msg.Booking | None:
    own = kept.booking.allocation
    others = ctx.facts.grants(ctx.facts.promises.get(own, ()))
    return next((each.booking for each in others if each.evict and each.after == (own,)), None)


def _moves_of(ctx: MoveContext, request: RequestId) -> list[msg.Grant]:
    return [grant for grant in ctx.facts.grants_of(request) if is_move(grant)]


def about_moving(ctx: MoveContext, allocation: AllocationId) -> str:
    """What a user should know about a bound pod with more than it requested, or being moved; else empty."""
    entry = ctx.facts.granted(allocation)
    if entry is None:
        return ""
    asked = ctx.facts.wanted(entry.booking.request)
    words = ""
    if entry.booking.instead_of:
        words = f"; it has a larger profile because no {entry.booking.instead_of} was free"
        if asked is not None and asked.leeway.substitute == "return":
            stayed = f"it has stayed for {ctx.rules.move_cooldown_s:.0f} s"
            words += f"; it is moved back (evicted and started again there) once one is free and {stayed}"
    kept = next(iter(_moves_of(ctx, entry.booking.request)), None)
    if kept is None:
        return words
    outcome = ctx.facts.evicted.get(entry.booking.request)
    blocked = f", but the eviction is refused: {outcome.why}" if isinstance(outcome, msg.EvictionBlocked) else ""
    return f"{words}; a place on {kept.booking.node} is reserved for its replacement, and it is evicted{blocked}"


def is_kept(ctx: MoveContext, entry: msg.Grant) -> bool:
    """Whether a grant is a place that its own request is to be moved to: not to be bound while it has another."""
    return is_move(entry) and is_promise(ctx, entry)
