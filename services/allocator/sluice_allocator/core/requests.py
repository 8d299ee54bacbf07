"""
One request's life, derived from facts each time it is looked at (PROTOCOL §4).

There are no stored states to fall out of step: what the bus says of the request, its binding, its ledger entries and
their slices decides what to want next. So a restart, a skipped value, a second allocator and a wiped broker need no
path of their own.

    asked, nothing granted                -> wait for a place
    granted and slice ready, not bound    -> Bound (the binding's guard makes the request unique)
    granted, but not the bound one        -> Revoke (surplus)
    withdrawn, refused or failed          -> Revoke
    slice gone                            -> Closed
    withdrawn, nothing booked any more    -> Released
"""

from sluice.contracts import subjects
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    Held,
    LedgerEntry,
    Refused,
    Released,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceGone,
    SliceReady,
    WaitOver,
    Waived,
)
from sluice.contracts.refusals import ReasonCount, WaitReason
from sluice_allocator.core.advice import advice
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.evictions.preempting import note_revoked
from sluice_allocator.core.groups.settling import is_held_back, is_told_by_group, know_group, waits_with_group, waiver
from sluice_allocator.core.held import is_held, say_that_it_waits, say_why, waits_for_node, waits_for_nodes
from sluice_allocator.core.limits.excess import may_bind
from sluice_allocator.core.moves.moving import is_kept, look_at_movable, take_over
from sluice_allocator.core.placement import asking_of, refuse
from sluice_allocator.core.standing import FAILED, why_not
from sluice_allocator.core.waiting.promised import (
    give_up,
    is_promise,
    say_for_whom_it_waits,
    settle_eviction,
)
from sluice_allocator.core.waiting.queue import alone, shape_of
from sluice_allocator.core.waiting.scheduling import stands_alone, try_at_once, wait
from sluice_allocator.core.world import RequestFact


def settle_request(desk: Desk, request: RequestId) -> None:
    """Look at one request and want what follows."""
    if desk.opening.holds:
        desk.opening.let_go(request)
    asked = desk.world.requests.get(request)
    know_group(desk, request, asked)
    entries = {a: desk.world.ledger[a] for a in desk.world.allocations_of.get(request, ())}
    standing = _settle_entries(desk, entries, asked) if entries else {}
    settle_eviction(desk, request, entries)
    look_at_movable(desk, request, asked, entries)
    if isinstance(asked, AllocationRequested):
        _settle_asked(desk, request, asked, entries, standing)
        if _is_told_why(desk, request, asked, entries):
            return
    else:
        desk.queue.remove(request)
        _settle_ended(desk, request, asked, entries)
    _end_waiting(desk, request)


# -- one ledger entry ---------------------------------------------------------------------------------------------


def _settle_entries(
    desk: Desk, entries: dict[AllocationId, LedgerEntry], asked: RequestFact | None
) -> dict[AllocationId, Grant]:
    """Want what follows of each entry. Returns the grants that shall stand."""
    standing: dict[AllocationId, Grant] = {}
    for allocation, entry in entries.items():
        cause = None
        if isinstance(entry, Grant):
            cause = why_not(desk, entry, asked)
            if cause is None:
                standing[allocation] = entry
        _settle_entry(desk, allocation, entry, cause)
    return standing


def _settle_entry(desk: Desk, allocation: AllocationId, entry: LedgerEntry, cause: str | None) -> None:
    """Want what follows of one entry. `cause`: why it shall not stand, if it is a Grant that shall not."""
    if isinstance(entry, Closed):
        return
    slice_ = desk.world.slices.get(allocation)
    if isinstance(entry, Revoke) and entry.incarnation != desk.world.incarnation:
        cause = entry.cause  # it landed late, of another life of the broker, and no agent acts on it: order it again
    if cause is None and not isinstance(slice_, SliceGone):
        return
    booking = entry.booking
    address = subjects.ledger(booking.node, allocation)
    if desk.outbox.busy(address):
        return
    if isinstance(slice_, SliceGone):
        closed = Closed(
            revision=entry.revision,
            allocation=allocation,
            request=booking.request,
            node=booking.node,
            cause=entry.cause if isinstance(entry, Revoke) else slice_.cause,
        )
        desk.commit(address, closed, booking.request, ttl_s=desk.rules.closing_ttl_s)
        return
    if cause is not None:
        if isinstance(slice_, FAILED):
            desk.attempts.failed(booking.request, (device.gpu for device in booking.devices), desk.now)
        if isinstance(entry, Grant):
            give_up(desk, entry)
        counted = desk.counted(entry)  # of shares that are being made smaller, all that may still be used
        revoke = Revoke(
            revision=entry.revision + 1,
            incarnation=desk.world.incarnation,
            booking=counted,
            cause=cause,
            after=entry.after,
        )
        desk.commit(address, revoke, booking.request)
        if isinstance(entry, Grant):
            note_revoked(desk, entry)


def settle_stray(desk: Desk, allocation: AllocationId) -> None:
    """
    A slice that is gone and not in the ledger (the broker was wiped, or `Closed` ran out unread): close it again.

    Its agent says `SliceGone` until it reads `Closed`; without this it would say so for ever.
    """
    slice_ = desk.world.slices.get(allocation)
    if not isinstance(slice_, SliceGone) or slice_.closing or allocation in desk.world.ledger:
        return
    node = desk.world.slice_nodes[allocation]
    address = subjects.ledger(node, allocation)
    if not desk.outbox.busy(address):
        closed = Closed(
            revision=slice_.revision, allocation=allocation, request=slice_.request, node=node, cause=slice_.cause
        )
        desk.commit(address, closed, slice_.request, ttl_s=desk.rules.closing_ttl_s)


# -- a request that somebody wants --------------------------------------------------------------------------------


def _settle_asked(
    desk: Desk,
    request: RequestId,
    asked: AllocationRequested,
    entries: dict[AllocationId, LedgerEntry],
    standing: dict[AllocationId, Grant],
) -> None:
    """Want what follows for a request that has these `entries` in the ledger, of which some shall be `standing`."""
    address = subjects.binding(request)
    binding = desk.world.bindings.get(request)
    if desk.outbox.busy(address) or isinstance(binding, Released):
        desk.queue.remove(request)
        return
    if isinstance(binding, Bound):
        desk.queue.remove(request)
        _follow_bound(desk, request, binding, entries)
        return
    grants = {a: e for a, e in standing.items() if not is_kept(desk, e)}
    held = asked.held
    if held is not None and held.allocation not in grants and _is_pinned_elsewhere(desk, request, asked, entries):
        desk.queue.remove(request)
        return
    answer = _answer(desk, request, asked, grants)
    if answer is not None:
        desk.queue.remove(request)
        desk.commit(address, answer, request)
        return
    if isinstance(binding, Refused) and binding.request_revision >= asked.revision:
        desk.queue.remove(request)
        return
    if request in desk.committing or not all(_may_have_another(desk, grant) for grant in grants.values()):
        desk.queue.remove(request)
        return
    node = waits_for_node(desk, request, asked.held)
    if node is not None:
        desk.queue.remove(request)
        say_that_it_waits(desk, request, asked, node)
        return
    _refuse_or_queue(desk, request, asked)


def _answer(
    desk: Desk, request: RequestId, asked: AllocationRequested, grants: dict[AllocationId, Grant]
) -> Bound | Waived | None:
    """What is to be said of the places that a request has; None while that is open."""
    if not grants:
        return None
    waived = waiver(desk, request, asked, grants)
    if waived is not None:
        return waived
    for allocation, grant in _bindable(grants, asked.held).items():
        if grant.booking.node in desk.world.removed:
            continue  # bound when its agent comes back, and given up when it does not
        bound = _bound_of(desk, allocation, grant, revision=1)
        if bound is not None:
            return bound if not is_held_back(desk, request) else None
    return None


def _may_have_another(desk: Desk, grant: Grant) -> bool:
    """Whether a request with this grant goes on waiting in its turn: for a place that is free before its own is."""
    return is_promise(desk, grant) and not grant.evict


def _is_pinned_elsewhere(
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether its pod is, or may be, where its source says: then another slice, however ready, is not for it."""
    held = asked.held
    assert held is not None
    node = waits_for_node(desk, request, held)
    if node is not None:
        say_that_it_waits(desk, request, asked, node)
        return True
    removed = desk.world.removed.get(held.node)
    if removed is None or request in desk.committing or any(isinstance(e, Grant) for e in entries.values()):
        return False
    if all(isinstance(entry, Closed) for entry in entries.values()):
        _release(desk, request, f"slice lost: {held.node} was removed: {removed.cause}")
    return True


def _is_told_why(
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a request is told by itself, and not by the queue, why it is not bound."""
    if entries and (
        _is_told_of_its_loss(desk, request, asked, entries) or _is_told_of_its_promise(desk, request, asked, entries)
    ):
        return True
    if request not in desk.gangs.member_of:
        return False
    desk.gangs.note_hold(request, holds=request in desk.opening.holds)
    return is_told_by_group(desk, request, asked)


def _is_told_of_its_loss(
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a pod's slice was lost, and its binding with the broker: it is told, for nothing can be bound now."""
    if isinstance(desk.world.bindings.get(request), (Bound, Refused, Released)) or request in desk.committing:
        return False
    lost = _lost_slice(desk, entries)
    if lost is None or not is_held(asked, lost.allocation):
        return False
    node = desk.world.slice_nodes[lost.allocation]
    reason = ReasonCount(reason=WaitReason.GPU_UNHEALTHY, count=1, of="GPUs")
    say_why(desk, request, asked, f"its slice on {node}: {lost.message}", reason)
    return True


def _is_told_of_its_promise(
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a request has a place that is still being freed: it is told for whom it waits."""
    if desk.world.bindings.get(request) is not None:
        return False
    grants = [entry for entry in entries.values() if isinstance(entry, Grant) and entry.after]
    return any(say_for_whom_it_waits(desk, request, asked, grant) for grant in grants)


def _lost_slice(desk: Desk, entries: dict[AllocationId, LedgerEntry]) -> SliceDegraded | None:
    """The word of a granted slice whose devices vanished."""
    for allocation, entry in entries.items():
        slice_ = desk.world.slices.get(allocation)
        if isinstance(slice_, SliceDegraded) and isinstance(entry, Grant):
            return slice_
    return None


def _bindable(grants: dict[AllocationId, Grant], held: Held | None) -> dict[AllocationId, Grant]:
    """Of several grants the one that its source remembers, and no other, for its pod is there: ready (again) or not."""
    if held is None or held.allocation not in grants:
        return grants
    return {held.allocation: grants[held.allocation]}


def _keeps_time(desk: Desk, grant: Grant) -> bool:
    """Whether the node enforces quotas of time, as far as its inventory has told."""
    shown = desk.shown.get(grant.booking.node)
    return shown is not None and shown.time_quota


def _bound_of(desk: Desk, allocation: AllocationId, grant: Grant, revision: int) -> Bound | None:
    slice_ = desk.world.slices.get(allocation)
    if not isinstance(slice_, SliceReady) or slice_.revision != grant.revision:
        return None
    if revision == 1 and not may_bind(desk, grant):
        return None
    return Bound(
        request=grant.booking.request,
        request_revision=grant.booking.request_revision,
        allocation=allocation,
        node=grant.booking.node,
        revision=revision,
        ticket=slice_.ticket,
        containers=slice_.containers,
        slice_sequence=desk.world.sequences.get(subjects.slice_(grant.booking.node, allocation).subject, 0),
        warnings=(*slice_.warnings, *advice(slice_, grant.booking, time_quota=_keeps_time(desk, grant))),
    )


def _follow_bound(desk: Desk, request: RequestId, binding: Bound, entries: dict[AllocationId, LedgerEntry]) -> None:
    """A bound request: its strings and warnings follow the slice (a reboot changes them); a lost slice ends it."""
    entry = entries.get(binding.allocation)
    if isinstance(entry, Grant):
        again = _bound_of(desk, binding.allocation, entry, binding.revision + 1)
        if again is None or _told(again) == _told(binding):
            desk.differing.pop(request, None)
        elif again.slice_sequence > binding.slice_sequence or _differs_for_long(desk, request):
            desk.commit(subjects.binding(request), again, request)
    elif isinstance(entry, Closed):
        _release(desk, request, f"slice lost: {entry.cause}")
    elif binding.allocation in desk.world.lost:
        held = Held(node=binding.node, allocation=binding.allocation)
        if waits_for_node(desk, request, held) is None:
            _release(desk, request, "slice lost: it is not in the ledger any more")


def _told(bound: Bound) -> tuple[object, ...]:
    """What a binding tells its pod: when this differs, it is said anew."""
    return bound.ticket, bound.containers, bound.warnings


def _differs_for_long(desk: Desk, request: RequestId) -> bool:
    return desk.now - desk.differing.setdefault(request, desk.now) >= desk.rules.rebind_anyway_s


def _refuse_or_queue(desk: Desk, request: RequestId, asked: AllocationRequested) -> None:
    shape = shape_of(asked, limited=asked.namespace in desk.world.quotas)
    refusal = None
    if shape not in desk.possible:
        refusal = refuse(desk.fleet, asking_of(asked), max_gpus_per_node=desk.rules.max_gpus_per_node)
    if refusal is not None:
        desk.queue.remove(request)
        refused = Refused(request=request, request_revision=asked.revision, refusal=refusal)
        desk.commit(subjects.binding(request), refused, request)
        return
    desk.possible.add(shape)
    if desk.rules.defragment and request not in desk.queue and request not in desk.queue.outside:
        desk.moves.arrived(desk.rules.defragment_arrivals, desk.rules.defragment_moves_max)
    if take_over(desk, request, asked):
        return
    if waits_with_group(desk, request):
        if not desk.gangs.leads(request):
            desk.queue.remove(request)
        return
    if stands_alone(desk, request):
        shape = alone(shape, request)
    elif desk.nothing_else_to_do and shape not in desk.queue.shapes:
        try_at_once(desk, request, asked, shape)
        return
    if wait(desk, request, asked, shape):
        desk.to_try[request] = None


# -- a request that nobody wants any more -------------------------------------------------------------------------


def _settle_ended(
    desk: Desk, request: RequestId, asked: RequestFact | None, entries: dict[AllocationId, LedgerEntry]
) -> None:
    """Withdrawn, rejected, or not there (its source is silent, or has said its last word)."""
    desk.differing.pop(request, None)
    address = subjects.binding(request)
    binding = desk.world.bindings.get(request)
    if request in desk.committing or desk.outbox.busy(address):
        return
    if entries and not all(isinstance(entry, Closed) for entry in entries.values()):
        return  # `Released` is said after SliceGone, never before
    if isinstance(binding, Bound) and binding.allocation not in entries and _may_come_yet(desk, binding.allocation):
        return
    if isinstance(asked, RequestWithdrawn) and not isinstance(binding, Released) and not asked.closing:
        if waits_for_node(desk, request, asked.held) is not None:
            return
        if not entries and waits_for_nodes(desk, request):
            return
        _release(desk, request, asked.cause)
        return
    if isinstance(asked, RequestWithdrawn) and asked.closing:
        desk.attempts.forget(request)
        desk.sparing.forget(request)
    if isinstance(binding, Bound) and (asked is None or isinstance(asked, RequestWithdrawn)):
        held = Held(node=binding.node, allocation=binding.allocation)
        if waits_for_node(desk, request, held) is None:  # a late Bound may be older than this life of the broker
            _release(desk, request, "nobody asks for it any more")


def _may_come_yet(desk: Desk, allocation: AllocationId) -> bool:
    """
    Whether the entry of what was bound is still on its way to us.

    Not that of a slice that is gone: a Bound that was sent over an empty subject can land after the broker was wiped.
    """
    return allocation not in desk.world.lost and not isinstance(desk.world.slices.get(allocation), SliceGone)


def _release(desk: Desk, request: RequestId, cause: str) -> None:
    released = Released(request=request, cause=cause)
    desk.commit(subjects.binding(request), released, request, ttl_s=desk.rules.closing_ttl_s)


def _end_waiting(desk: Desk, request: RequestId) -> None:
    """`sluice.waiting` shall not go on saying that a request waits which does so no more."""
    if not (desk.world.waiting or desk.outbox.keeps_anything):
        return
    if request in desk.queue or request in desk.queue.outside or request in desk.opening.holds:
        return
    address = subjects.waiting(request)
    said = desk.outbox.kept(address) or desk.world.waiting.get(request)
    if said is not None and not isinstance(said, WaitOver):
        over = WaitOver(request=request)
        desk.outbox.keep(address, over, request=request, ttl_s=desk.rules.closing_ttl_s)
