"""
Grants that are to be carried out when others are gone (`after`): whether they stand, and whom they wait for.

A place that is promised is booked: nobody else is given it meanwhile (PROTOCOL §4). Who is promised what is decided
elsewhere, and so is who has to go for it (`ordering`).
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    EvictionBlocked,
    EvictionDone,
    Grant,
    LedgerEntry,
    Revoke,
    SliceDegraded,
    SliceGone,
    SliceQuarantined,
    SliceReady,
    Waived,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.held import say_why
from sluice_allocator.core.moves.kept_places import comes_after_its_own, is_move
from sluice_allocator.core.placement import Avoid, NoPlace
from sluice_allocator.core.world import request_of

NAMED_MAX = 3
"""So many of the pods that are waited for are named."""


def unfinished(desk: Desk, grant: Grant) -> tuple[AllocationId, ...]:
    """Of what a grant is to come after, those that are not gone yet."""
    return tuple(each for each in grant.after if not is_gone(desk, each))


def is_gone(desk: Desk, allocation: AllocationId) -> bool:
    """Whether nothing of an allocation is left: closed, said to be gone by its agent, or never heard of."""
    entry = desk.world.ledger.get(allocation)
    return entry is None or isinstance(entry, Closed) or isinstance(desk.world.slices.get(allocation), SliceGone)


def is_being_revoked(desk: Desk, grant: Grant) -> bool:
    """Whether a Revoke of a standing grant is on its way: what else is written over one is a change of its shares."""
    allocation = grant.booking.allocation
    if allocation in desk.adjustments.on_their_way:
        return False
    return desk.outbox.busy(subjects.ledger(grant.booking.node, allocation))


def is_promise(desk: Desk, grant: Grant) -> bool:
    """Whether the place of a grant still has others who must be gone first."""
    return bool(grant.after) and bool(unfinished(desk, grant))


def standing_promise(desk: Desk, request: RequestId) -> Grant | None:
    """The promise of a request that waits for others to end (not to be evicted); None when it has none."""
    for allocation in desk.world.allocations_of.get(request, ()):
        entry = desk.world.ledger[allocation]
        if isinstance(entry, Grant) and not entry.evict and is_promise(desk, entry):
            return entry
    return None


def not_from_others(desk: Desk, request: RequestId) -> Avoid:
    """
    GPUs on which nobody has to leave for a request: it failed there a short while ago, or has left something there.

    What is being taken back of it counts on its node until it is gone. Then there may be room beside those who live
    there: they would have been evicted for nothing, and the promise be given up, and made again, without end.
    """
    avoid = desk.attempts.avoided(request, desk.now)
    for allocation in desk.world.allocations_of.get(request, ()):
        entry = desk.world.ledger[allocation]
        if isinstance(entry, Closed) or (isinstance(entry, Grant) and not is_being_revoked(desk, entry)):
            continue
        if not is_gone(desk, allocation):
            node = desk.fleet.nodes.get(entry.booking.node)
            avoid |= frozenset(gpu.report.uuid for gpu in node.all_gpus) if node is not None else frozenset()
    return avoid


def has_place_now(desk: Desk, promised: Grant) -> bool:
    """
    Whether the request of a grant that still waits for others has another that waits for nobody, or for this one only.

    Where nobody is evicted for it the promise is kept until that other slice is there: making it may fail, and then a
    promise would have been given up for nothing. What it is exchanged for cannot be made before it is gone.
    """
    own = promised.booking.allocation
    for allocation in desk.world.allocations_of.get(promised.booking.request, ()):
        other = desk.world.ledger[allocation]
        if allocation == own or not isinstance(other, Grant) or is_being_revoked(desk, other):
            continue
        before = unfinished(desk, other)
        if before == (own,) and is_exchange(other):
            return True
        if not before and (promised.evict or isinstance(desk.world.slices.get(allocation), SliceReady)):
            return True
    return False


def is_exchange(grant: Grant) -> bool:
    """Whether a grant comes after what its own request was promised: it has a part of that, and waits for nobody."""
    return not grant.evict and comes_after_its_own(grant)


def why_give_up(desk: Desk, promised: Grant, revision: int) -> str | None:
    """
    Why a grant that still waits for others shall not stand; None when it shall.

    `revision` is the request's by now, 0 when nobody asks at the moment.
    """
    if not is_promise(desk, promised) or _was_made(desk, promised):
        return None
    booking = promised.booking
    if has_place_now(desk, promised):
        return "another place was free earlier"
    if revision > booking.request_revision:
        return "the request was edited after its place was reserved"
    if desk.fleet.has_room_beside(booking) and not _takes_over(desk, promised):
        return "the pods it waited for were resized: its place is free beside them"
    gpus = (desk.fleet.gpus.get(device.gpu) for device in booking.devices)
    lost = {desk.fleet.why_unusable(gpu) for gpu in gpus if gpu is not None}
    if lost & {WaitReason.NODE_CORDONED, WaitReason.GPU_UNHEALTHY}:
        return f"its reserved place on {booking.node} can no longer be used"
    stuck = _stuck(desk, promised)
    if stuck:
        return f"its place on {booking.node} could not be freed: {', '.join(_name_of(desk, each) for each in stuck)}"
    others = (each for each in _promises_of(desk, booking.request) if each.booking.allocation not in promised.after)
    if any(is_earlier(desk, other, promised) for other in others):
        return "an earlier place is reserved for it"
    return None


def _takes_over(desk: Desk, promised: Grant) -> bool:
    """Whether it comes after a place that was kept for it, and that goes now: its own, whatever is free beside it."""
    before = (desk.world.ledger.get(each) for each in unfinished(desk, promised))
    return promised.evict and all(_was_kept(each) for each in before)


def _was_kept(entry: LedgerEntry | None) -> bool:
    """Whether an entry keeps a place for a pod that is moved, or did until it was revoked."""
    return is_move(entry) if isinstance(entry, Grant) else isinstance(entry, Revoke) and comes_after_its_own(entry)


def _was_made(desk: Desk, promised: Grant) -> bool:
    """
    Whether its agent has made it, so that those before it are gone although their last words are not read yet.

    Its pod may run there, and is not to lose it as if it were only promised. A binding is read on another stream than
    the agent's words, and says the same.
    """
    booking = promised.booking
    binding = desk.world.bindings.get(booking.request)
    if isinstance(binding, Bound) and binding.allocation == booking.allocation:
        return True
    return isinstance(desk.world.slices.get(promised.booking.allocation), SliceReady | SliceDegraded)


def _stuck(desk: Desk, promised: Grant) -> tuple[AllocationId, ...]:
    """Those that are still there although their pods should have been evicted by now; or that nobody may wait for."""
    left = unfinished(desk, promised)
    if not promised.evict:
        return tuple(each for each in left if is_in_quarantine(desk, each))
    return tuple(each for each in left if _is_overdue(desk, desk.world.ledger[each]))


def is_in_quarantine(desk: Desk, allocation: AllocationId) -> bool:
    """Whether a slice could not be given back in several attempts: it may never be gone, unless a person sees to it."""
    return isinstance(desk.world.slices.get(allocation), SliceQuarantined)


def _is_overdue(desk: Desk, entry: LedgerEntry) -> bool:
    request = request_of(entry)
    done = isinstance(entry, Revoke) or isinstance(desk.world.evicted.get(request), EvictionDone)
    return desk.sparing.is_overdue(request, desk.now, done=done)


def give_up(desk: Desk, promised: Grant) -> None:
    """A promise is taken back: whoever could not be evicted for it is left alone for a while."""
    for each in _stuck(desk, promised) if promised.evict else ():
        desk.sparing.failed(request_of(desk.world.ledger[each]), desk.now)
        desk.sparing.look[each] = None


def _promises_of(desk: Desk, request: RequestId) -> list[Grant]:
    """The promises of a request that stand, as far as is known: none that was waived, or is being revoked."""
    binding = desk.world.bindings.get(request)
    waived = binding.allocations if isinstance(binding, Waived) else ()
    left = (each for each in desk.world.allocations_of.get(request, ()) if each not in waived)
    entries = (desk.world.ledger[allocation] for allocation in left)
    grants = (entry for entry in entries if isinstance(entry, Grant) and is_promise(desk, entry))
    return [grant for grant in grants if not is_being_revoked(desk, grant)]


def is_earlier(desk: Desk, one: Grant, other: Grant) -> bool:
    """Two allocators may promise at once: the one that was written first stands, for every reader."""
    return _written(desk, one) < _written(desk, other)


def _written(desk: Desk, grant: Grant) -> tuple[int, AllocationId]:
    booking = grant.booking
    subject = subjects.ledger(booking.node, booking.allocation).subject
    return desk.world.sequences.get(subject, 0), booking.allocation


def look_at_promises_on(desk: Desk, node: NodeName) -> None:
    """A node may be used otherwise than before: look again at whom a place on it was promised to."""
    known = desk.fleet.nodes.get(node)
    for allocation in known.taken if known is not None else ():
        entry = desk.world.ledger.get(allocation)
        if isinstance(entry, Grant) and entry.after:
            desk.changed_requests[entry.booking.request] = None
            _count(desk, allocation)


def is_about_promises(desk: Desk, allocation: AllocationId, entry: LedgerEntry | None) -> bool:
    """Whether an entry waits for others, did so until now, or is waited for. Most never come into question."""
    world = desk.world
    waits = isinstance(entry, Grant) and bool(entry.after)
    counted = allocation in desk.promised  # its Grant may have been overwritten before its own write was answered
    return waits or counted or allocation in world.promises or allocation in world.unpromised


def count_promises(desk: Desk, allocation: AllocationId) -> None:
    """An entry has changed: whether it still is one of the promises that are counted, and those that wait for it."""
    entry = desk.world.ledger.get(allocation)
    if allocation in desk.promised or (isinstance(entry, Grant) and entry.after):
        _count(desk, allocation)
    for promise in desk.world.promises.get(allocation, ()):
        _count(desk, promise)


def _count(desk: Desk, allocation: AllocationId) -> None:
    entry = desk.world.ledger.get(allocation)
    if allocation in desk.assumed:
        return  # counted when it was decided
    if isinstance(entry, Grant) and not entry.evict and is_promise(desk, entry) and not is_gone(desk, allocation):
        desk.promised.count(allocation, desk.fleet.models_of(entry.booking))
    else:
        desk.promised.forget(allocation)


def look_at_promises(desk: Desk, allocation: AllocationId) -> None:
    """An entry has changed: look again at who waits for it, and at who it waits for."""
    for promise in desk.world.promises.get(allocation, ()):
        desk.changed_requests[request_of(desk.world.ledger[promise])] = None
        desk.sparing.look[promise] = None
    entry = desk.world.ledger.get(allocation)
    before = dict.fromkeys(desk.world.unpromised.pop(allocation, ()))
    for other in {**before, **dict.fromkeys(entry.after if isinstance(entry, Grant) else ())}:
        desk.sparing.look[other] = None
        if other in desk.world.ledger:
            desk.changed_requests[request_of(desk.world.ledger[other])] = None


def look_at_those_who_wait_for(desk: Desk, request: RequestId) -> None:
    """What is said of a pod's eviction has changed, or time has passed: look again at who waits for its places."""
    for allocation in desk.world.allocations_of.get(request, ()):
        for promise in desk.world.promises.get(allocation, ()):
            desk.changed_requests[request_of(desk.world.ledger[promise])] = None


def say_for_whom_it_waits(desk: Desk, request: RequestId, asked: AllocationRequested, grant: Grant) -> bool:
    """Tell why a request with a promised place is not bound yet. False when its place is there."""
    message = for_whom_it_waits(desk, grant)
    if message is None:
        return False
    reason = ReasonCount(reason=WaitReason.PLACE_BEING_FREED, count=len(unfinished(desk, grant)), of="slices")
    say_why(desk, request, asked, message, reason)
    return True


def with_promises(desk: Desk, why: NoPlace) -> NoPlace:
    """Why somebody waits, and that some of what is free on these GPUs is kept for those who have waited longer."""
    named = {each.of for each in why.reasons}
    kept = {model: count for model, count in sorted(desk.promised.of_model.items()) if model in named}
    if not kept:
        return why
    words = "; ".join(f"{count} x {model}: reserved for pods ahead in the queue" for model, count in kept.items())
    more = tuple(ReasonCount(reason=WaitReason.PLACE_PROMISED, count=n, of=model) for model, n in kept.items())
    return NoPlace(f"{why.message}; {words}", (*why.reasons, *more), why.more)


def for_whom_it_waits(desk: Desk, grant: Grant) -> str | None:
    """Whose end the place of a grant waits for, in a sentence; None when it waits for nobody."""
    waited_for = unfinished(desk, grant)
    if not waited_for:
        return None
    if is_exchange(grant):
        return f"its place on {grant.booking.node} is free, once its earlier reservation there is released"
    names = [_name_of(desk, each) for each in waited_for[:NAMED_MAX]]
    if grant.evict and names == [f"{grant.booking.namespace}/{grant.booking.name}"]:
        return f"its place on {grant.booking.node} was kept for it when it was evicted, and is being handed over"
    more = f" and {len(waited_for) - NAMED_MAX} more" if len(waited_for) > NAMED_MAX else ""
    how = "to be evicted for it" if grant.evict else "to end"
    return f"its place on {grant.booking.node} is reserved and waits for {', '.join(names)}{more} {how}"


def _name_of(desk: Desk, allocation: AllocationId) -> str:
    entry = desk.world.ledger.get(allocation)
    if entry is None or isinstance(entry, Closed):
        return allocation
    blocked = desk.world.evicted.get(entry.booking.request)
    but = f" (cannot be evicted: {blocked.why})" if isinstance(blocked, EvictionBlocked) else ""
    return f"{named(entry)}{but}"


def named(entry: Grant | Revoke) -> str:
    """Whose place it is, as people call the pod."""
    return f"{entry.booking.namespace}/{entry.booking.name}"
