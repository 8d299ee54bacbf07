"""
Moves a pod: books its new place, evicts it, and gives the place to its replacement.

    the new place is booked    -> a Grant of the old request, `after` its own allocation: `ordering` orders the eviction
    its replacement asks       -> a Grant of the new request at that place, `after` the kept one, which is then revoked
    no replacement comes       -> the place is given up
    it cannot be evicted       -> the place is given up, and the order to evict is lifted

All of it is derived from the ledger and the requests: the grant itself shows that it keeps a place (`is_move`), so a
restart in the middle and a second allocator come to the same. A pod is moved again only after `move_cooldown_s`,
whatever for, and never before a place is booked for it.

Pods with larger profiles are moved back here too (`substitute: return`); moves for others are in `defragmenting`.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, RequestId, request_named
from sluice.contracts.messages import (
    AllocationRequested,
    Booking,
    Bound,
    Closed,
    EvictionBlocked,
    EvictionDone,
    Grant,
    LedgerEntry,
    RequestWithdrawn,
    SliceDegraded,
    SliceFailed,
    SliceQuarantined,
    SliceReady,
)
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.booking import booking_of
from sluice_allocator.core.placement import Place, asking_of, find_place, find_place_on
from sluice_allocator.core.quotas.quota import forbids_place
from sluice_allocator.core.state.bus_cache import RequestFact
from sluice_allocator.core.state.context import Desk
from sluice_allocator.core.state.facts import is_too_late
from sluice_allocator.core.state.grant_facts import is_earlier, is_gone, is_move, is_promise, kin_of, standing_promise

UNUSABLE = (SliceFailed, SliceQuarantined, SliceDegraded)
"""Statuses of a slice that cannot be used."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A movable pod, and what it has now."""

    request: RequestId
    asked: AllocationRequested
    booking: Booking


@dataclass(frozen=True, slots=True)
class _Phase:
    """How far a move is: why it ends, at once or after so long."""

    why_over: str
    name: str = ""
    limit_s: float = 0.0


# -- what is known ------------------------------------------------------------------------------------------------


def count_move(desk: Desk, allocation: AllocationId) -> None:
    """An entry changed: update whether it keeps a place for a moved pod, or waits for others."""
    entry = desk.world.ledger.get(allocation)
    lives = isinstance(entry, Grant) and not is_gone(desk, allocation)
    if lives and isinstance(entry, Grant) and is_move(entry):
        booking = entry.booking
        desk.moves.stand(allocation, kin_of(booking.source, booking.namespace, booking.name))
    elif desk.moves.end(allocation):  # whatever the outcome: if the pod still exists, it is left alone for a while
        for other in desk.world.allocations_of.get(request_named(allocation), ()):
            desk.moves.stays_anew(other, desk.now)
    if lives and isinstance(entry, Grant) and not entry.evict and entry.after:
        desk.moves.promises.setdefault(allocation, None)
    else:
        desk.moves.promises.pop(allocation, None)


def look_at_movable(
    desk: Desk, request: RequestId, asked: RequestFact | None, entries: dict[AllocationId, LedgerEntry]
) -> None:
    """A request changed: update which of its allocations is a movable pod's, and since when it stays there."""
    if not isinstance(asked, AllocationRequested) or not (asked.leeway.movable or asked.leeway.substitute == "return"):
        for allocation in entries if desk.moves.stays_since else ():
            desk.moves.leaves(allocation)
        return
    binding = desk.world.bindings.get(request)
    for allocation, entry in entries.items():
        bound = isinstance(binding, Bound) and binding.allocation == allocation
        if not bound or not isinstance(entry, Grant) or is_gone(desk, allocation):
            desk.moves.leaves(allocation)
            continue
        returns = asked.leeway.substitute == "return" and bool(entry.booking.instead_of)
        if returns or asked.leeway.movable:
            desk.moves.stays(allocation, desk.now, returns=returns)
        else:
            desk.moves.leaves(allocation)


def mover_of(desk: Desk, allocation: AllocationId) -> Mover | None:
    """The pod with an allocation, if it may be moved: bound, ready, and nothing else is done with it."""
    entry = desk.world.ledger.get(allocation)
    if allocation not in desk.moves.stays_since or not isinstance(entry, Grant) or is_gone(desk, allocation):
        return None
    request = entry.booking.request
    asked, binding = desk.world.requests.get(request), desk.world.bindings.get(request)
    if not isinstance(asked, AllocationRequested) or asked.group is not None:
        return None
    if not isinstance(binding, Bound) or binding.allocation != allocation:
        return None
    if not isinstance(desk.world.slices.get(allocation), SliceReady):
        return None
    if request in desk.world.evictions or isinstance(desk.world.evicted.get(request), EvictionDone):
        return None
    others = (desk.world.ledger[each] for each in desk.world.allocations_of[request] if each != allocation)
    if request in desk.committing or not all(isinstance(each, Closed) for each in others):
        return None
    return Mover(request, asked, entry.booking)


def has_stayed(desk: Desk, allocation: AllocationId) -> bool:
    """Whether a pod has stayed long enough to be moved (again)."""
    return desk.moves.stays_since[allocation] + desk.rules.move_cooldown_s <= desk.now


# -- booking the new place ----------------------------------------------------------------------------------------


def move_pods_back(desk: Desk) -> None:
    """Time passed: try a few pods with larger profiles, in turn. No waiting request is overtaken."""
    for allocation in desk.moves.standing:
        desk.changed_requests[request_named(allocation)] = None  # their clocks may have run out
    desk.moves.fill(desk.now, desk.rules.moves_per_minute)
    for _ in range(min(desk.rules.move_tries, len(desk.moves.returning))):
        if not may_move_one(desk):
            return
        allocation = next(iter(desk.moves.returning))
        desk.moves.returning.move_to_end(allocation)
        _move_back(desk, allocation)


def may_move_one(desk: Desk) -> bool:
    """Whether one more pod may be moved now."""
    return desk.moves.may_move >= 1 and len(desk.moves.standing) < desk.rules.moves_at_once


def book_move(desk: Desk, mover: Mover, place: Place) -> bool:
    """Book the new place of a pod; its eviction follows when that is in the ledger. False where limits forbid it."""
    after = (mover.booking.allocation,)
    if forbids_place(desk, None, mover.asked.namespace, place.devices, after):
        return False
    desk.moves.may_move -= 1
    desk.grant(booking_of(desk, mover.request, mover.asked, place), after, evict=True)
    return True


def exact_place(desk: Desk, mover: Mover) -> Place | None:
    """A free place of the size that a pod requested."""
    asking = replace(asking_of(mover.asked), substitute=False)
    found = find_place(desk.fleet, asking, desk.attempts.avoided(mover.request, desk.now))
    return found if isinstance(found, Place) else None


def _move_back(desk: Desk, allocation: AllocationId) -> None:
    mover = mover_of(desk, allocation)
    if mover is None or not has_stayed(desk, allocation):
        return
    place = exact_place(desk, mover)
    if place is None:
        return
    then, now = desk.fleet.usage_of(place.devices), desk.fleet.usage_of(mover.booking.devices)
    if (then.memory_mib, then.compute_permille) < (now.memory_mib, now.compute_permille):
        book_move(desk, mover, place)


# -- keeping it, and handing it over ------------------------------------------------------------------------------


def why_end_move(desk: Desk, grant: Grant, asked: RequestFact | None) -> str | None:
    """Why a place is not kept for a pod that is being moved; None when it is."""
    booking = grant.booking
    heir = _heir(desk, grant)
    if heir is not None:
        return f"its place was handed over to {heir.namespace}/{heir.name}"
    if is_too_late(desk, grant):
        return "written before the broker was recreated: no agent will act on it"
    slice_ = desk.world.slices.get(booking.allocation)
    if isinstance(slice_, UNUSABLE):
        return f"the slice that it was to move to does not exist: {slice_.message}"
    gpus = (desk.fleet.gpus.get(device.gpu) for device in booking.devices)
    if {desk.fleet.why_unusable(gpu) for gpu in gpus if gpu is not None} & {
        WaitReason.NODE_CORDONED,
        WaitReason.GPU_UNHEALTHY,
    }:
        return f"its place on {booking.node} can no longer be used"
    if any(is_earlier(desk, other, grant) for other in _moves_of(desk, booking.request)):
        return "an earlier place is reserved for it"
    phase = _phase_of(desk, grant, asked)
    if phase is None:
        return None
    if not phase.limit_s:
        return phase.why_over
    since = desk.moves.phase_since(booking.allocation, phase.name, desk.now)
    return f"{phase.why_over} (after {phase.limit_s:.0f} s)" if desk.now - since >= phase.limit_s else None


def note_phase(desk: Desk, grant: Grant, asked: RequestFact | None) -> None:
    """Remember since when a move is in its phase."""
    phase = _phase_of(desk, grant, asked)
    if phase is not None:
        desk.moves.enter(grant.booking.allocation, phase.name, desk.now)


def take_over(desk: Desk, request: RequestId, asked: AllocationRequested) -> bool:
    """
    Give a request without a place the one that is kept for its predecessor, if one fits. True if so.

    A request with a reservation uses that first: otherwise this one would be revoked, and the kept one lost with it.
    """
    if asked.group is not None or not desk.moves.kept_for or standing_promise(desk, request) is not None:
        return False
    for allocation in desk.moves.kept_for.get(kin_of(asked.source, asked.namespace, asked.name), ()):
        kept = desk.world.ledger[allocation]
        if not isinstance(kept, Grant) or kept.booking.request == request or _heir(desk, kept) is not None:
            continue
        place = _place_there(desk, kept, request, asked)
        if place is not None and not forbids_place(desk, request, asked.namespace, place.devices, (allocation,)):
            desk.queue.remove(request)
            desk.grant(booking_of(desk, request, asked, place), (allocation,), evict=True)
            return True
    return False


def _place_there(desk: Desk, kept: Grant, request: RequestId, asked: AllocationRequested) -> Place | None:
    """The place that a request can have on a node without the kept booking, by the common search."""
    node = kept.booking.node
    snapshot = desk.shown.get(node)
    if snapshot is None or desk.fleet.booking(kept.booking.allocation) is None:
        return None
    trial = desk.fleet.alone(snapshot)
    trial.unbook(kept.booking.allocation)
    asking = replace(asking_of(asked), substitute=False)
    with desk.fleet.peers.without([kept.booking.allocation]):
        return find_place_on(trial, asking, node, desk.attempts.avoided(request, desk.now))


def _phase_of(desk: Desk, grant: Grant, asked: RequestFact | None) -> _Phase | None:
    """Whether the pod is going, or need not go, or has gone without a replacement; None while nothing is known."""
    outcome = desk.world.evicted.get(grant.booking.request)
    evicted, rules = isinstance(outcome, EvictionDone), desk.rules
    if isinstance(asked, AllocationRequested):
        if all(is_gone(desk, each) for each in grant.after):
            return _Phase("its slice is gone, but its pod is not")
        if evicted:
            return _Phase("its pod was evicted and has not ended", "leaving", rules.move_leaving_s)
        if not _has_purpose(desk, grant, asked):
            return _Phase("the move is no longer needed")
        blocked = f": {outcome.why}" if isinstance(outcome, EvictionBlocked) else ""
        return _Phase(f"its pod could not be evicted{blocked}", "ordered", rules.move_patience_s)
    if not isinstance(asked, RequestWithdrawn):
        return None  # no request (yet): orphans have a rule of their own
    if not evicted and asked.cause == "containers ended":
        return _Phase("its pod ended by itself")
    return _Phase("no replacement of its pod came", "kept", rules.move_kept_s)


def _has_purpose(desk: Desk, grant: Grant, asked: AllocationRequested) -> bool:
    """Whether a pending move still helps: the pod itself, or a request that waits for its place."""
    for allocation in grant.after:
        entry = desk.world.ledger.get(allocation)
        served_by_larger = isinstance(entry, Grant) and entry.booking.instead_of and not grant.booking.instead_of
        if served_by_larger and asked.leeway.substitute == "return":
            return True
        for other in desk.world.promises.get(allocation, ()):
            promise = desk.world.ledger[other]
            if isinstance(promise, Grant) and promise.booking.request != grant.booking.request:
                return True
    return False


def _heir(desk: Desk, kept: Grant) -> Booking | None:
    """The booking that took over a kept place."""
    for other in desk.world.promises.get(kept.booking.allocation, ()):
        entry = desk.world.ledger[other]
        if isinstance(entry, Grant) and entry.evict and entry.after == (kept.booking.allocation,):
            return entry.booking
    return None


def _moves_of(desk: Desk, request: RequestId) -> list[Grant]:
    entries = (desk.world.ledger[allocation] for allocation in desk.world.allocations_of.get(request, ()))
    return [entry for entry in entries if isinstance(entry, Grant) and is_move(entry)]


def about_moving(desk: Desk, allocation: AllocationId) -> str:
    """What a user should know about a bound pod with more than it requested, or being moved; else empty."""
    entry = desk.world.ledger.get(allocation)
    if not isinstance(entry, Grant):
        return ""
    asked = desk.world.requests.get(entry.booking.request)
    words = ""
    if entry.booking.instead_of:
        words = f"; it has a larger profile because no {entry.booking.instead_of} was free"
        if isinstance(asked, AllocationRequested) and asked.leeway.substitute == "return":
            stayed = f"it has stayed for {desk.rules.move_cooldown_s:.0f} s"
            words += f"; it is moved back (evicted and started again there) once one is free and {stayed}"
    kept = next(iter(_moves_of(desk, entry.booking.request)), None)
    if kept is None:
        return words
    outcome = desk.world.evicted.get(entry.booking.request)
    blocked = f", but the eviction is refused: {outcome.why}" if isinstance(outcome, EvictionBlocked) else ""
    return f"{words}; a place on {kept.booking.node} is reserved for its replacement, and it is evicted{blocked}"


def is_kept(desk: Desk, entry: Grant) -> bool:
    """Whether a grant is a place that its own request is to be moved to: not to be bound while it has another."""
    return is_move(entry) and is_promise(desk, entry)
