"""
Moving a pod: its new place is booked first, then it is evicted, and who comes in its stead is given that place.

    the new place is booked    -> a Grant of the old request, `after` its own allocation: `ordering` orders the eviction
    its successor asks         -> a Grant of the new request at that place, `after` the kept one, which is then revoked
    nobody comes for it        -> the place is given up
    it cannot be evicted       -> the place is given up, and the order to evict is taken back

All of it is derived from the ledger and the requests: a place that is kept for a pod says so itself (`is_move`), so a
restart in the middle and a second allocator come to the same. A pod is moved again only when it has stayed for
`move_cooldown_s`, whoever and whatever it is moved for; nobody is moved while nothing is booked for him.

Here is also why pods are moved back from larger profiles (`substitute: return`). It must not move for others
(`defragmenting` does), and must not evict (`ordering` says who goes).
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
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.held import is_too_late
from sluice_allocator.core.limits.quotas import forbids_place
from sluice_allocator.core.moves.kept_places import is_move, kin_of
from sluice_allocator.core.placement import Place, asking_of, find_place, find_place_on
from sluice_allocator.core.waiting.promised import is_earlier, is_gone, is_promise, standing_promise
from sluice_allocator.core.world import RequestFact

UNUSABLE = (SliceFailed, SliceQuarantined, SliceDegraded)
"""Words of an agent that a slice is not there to be used."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A pod that may be moved, and what it has now."""

    request: RequestId
    asked: AllocationRequested
    booking: Booking


# -- what is known ------------------------------------------------------------------------------------------------


def count_move(desk: Desk, allocation: AllocationId) -> None:
    """An entry has changed: whether it keeps a place for a pod that is moved, or is a place that waits for others."""
    entry = desk.world.ledger.get(allocation)
    lives = isinstance(entry, Grant) and not is_gone(desk, allocation)
    if lives and isinstance(entry, Grant) and is_move(entry):
        booking = entry.booking
        desk.moves.stand(allocation, kin_of(booking.source, booking.namespace, booking.name))
    elif desk.moves.end(allocation):  # whatever came of it: if the pod is still there, it is left alone for a while
        for other in desk.world.allocations_of.get(request_named(allocation), ()):
            desk.moves.stays_anew(other, desk.now)
    if lives and isinstance(entry, Grant) and not entry.evict and entry.after:
        desk.moves.promises.setdefault(allocation, None)
    else:
        desk.moves.promises.pop(allocation, None)


def look_at_movable(
    desk: Desk, request: RequestId, asked: RequestFact | None, entries: dict[AllocationId, LedgerEntry]
) -> None:
    """A request has changed: which of its allocations is a pod's that may be moved, and since when it stays there."""
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
    """The pod that has an allocation, if it may be moved at all: bound, ready, and nothing else is done with it."""
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
    """Whether a pod has been where it is for long enough to be moved (again)."""
    return desk.moves.stays_since[allocation] + desk.rules.move_cooldown_s <= desk.now


# -- booking the new place ----------------------------------------------------------------------------------------


def move_pods_back(desk: Desk) -> None:
    """Time has passed: try a few of those that larger profiles serve, in turn. Nobody who waits is overtaken."""
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
    """Whether one more pod may be moved now, for whatever reason."""
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
    """A place of the very size that a pod asked for, which is free now."""
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
    return _why_not_any_longer(desk, grant, asked)


def take_over(desk: Desk, request: RequestId, asked: AllocationRequested) -> bool:
    """
    Give a request without a place the one that is kept for its like, if there is one that fits. True if so.

    Who was promised a place has that before: this one would be taken back, and the one that is kept be lost with it.
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
    """The place that a request can have on a node when what is kept there is gone: by the search for everybody."""
    node = kept.booking.node
    snapshot = desk.shown.get(node)
    if snapshot is None or desk.fleet.booking(kept.booking.allocation) is None:
        return None
    trial = desk.fleet.alone(snapshot)
    trial.unbook(kept.booking.allocation)
    asking = replace(asking_of(asked), substitute=False)
    with desk.fleet.peers.without([kept.booking.allocation]):
        return find_place_on(trial, asking, node, desk.attempts.avoided(request, desk.now))


def _why_not_any_longer(desk: Desk, grant: Grant, asked: RequestFact | None) -> str | None:
    """What the pod's life says: it goes, or need not go, or has gone and nobody comes."""
    outcome = desk.world.evicted.get(grant.booking.request)
    evicted = isinstance(outcome, EvictionDone)
    if isinstance(asked, AllocationRequested):
        if all(is_gone(desk, each) for each in grant.after):
            return "its slice is gone, but its pod is not"
        if evicted:
            return _over(desk, grant, "leaving", desk.rules.move_leaving_s, "its pod was evicted and has not ended")
        if not _has_purpose(desk, grant, asked):
            return "the move is no longer needed"
        blocked = f": {outcome.why}" if isinstance(outcome, EvictionBlocked) else ""
        return _over(desk, grant, "ordered", desk.rules.move_patience_s, f"its pod could not be evicted{blocked}")
    if not isinstance(asked, RequestWithdrawn):
        return None  # nobody asks for it (yet): orphans have a rule of their own
    if not evicted and asked.cause == "containers ended":
        return "its pod ended by itself"
    return _over(desk, grant, "kept", desk.rules.move_kept_s, "no replacement of its pod came")


def _over(desk: Desk, grant: Grant, phase: str, limit_s: float, why: str) -> str | None:
    """Why a move ends whose phase has lasted too long; None while it has not."""
    since = desk.moves.phase_since(grant.booking.allocation, phase, desk.now)
    return f"{why}, for {limit_s:.0f} s" if desk.now - since >= limit_s else None


def _has_purpose(desk: Desk, grant: Grant, asked: AllocationRequested) -> bool:
    """Whether somebody still gains by a move that has not happened: the pod itself, or who waits for its place."""
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
    """Who has taken over a place that was kept."""
    for other in desk.world.promises.get(kept.booking.allocation, ()):
        entry = desk.world.ledger[other]
        if isinstance(entry, Grant) and entry.evict and entry.after == (kept.booking.allocation,):
            return entry.booking
    return None


def _moves_of(desk: Desk, request: RequestId) -> list[Grant]:
    entries = (desk.world.ledger[allocation] for allocation in desk.world.allocations_of.get(request, ()))
    return [entry for entry in entries if isinstance(entry, Grant) and is_move(entry)]


def about_moving(desk: Desk, allocation: AllocationId) -> str:
    """What a person should know of a bound pod that has more than it asked for, or is being moved; empty otherwise."""
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
    """Whether a grant is a place that its own request is to be moved to: nothing to be bound while it has another."""
    return is_move(entry) and is_promise(desk, entry)
