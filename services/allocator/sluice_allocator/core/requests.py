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

from collections.abc import Iterable

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
    RequestRejected,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceQuarantined,
    SliceReady,
    WaitOver,
)
from sluice.contracts.refusals import ReasonCount, WaitReason
from sluice_allocator.core.advice import advice
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.held import say_that_it_waits, say_why, waits_for_node, waits_for_nodes
from sluice_allocator.core.placement import asking_of, refuse
from sluice_allocator.core.queue import alone, shape_of
from sluice_allocator.core.scheduling import try_at_once
from sluice_allocator.core.world import RequestFact

FAILED = (SliceFailed, SliceQuarantined)
"""Words of an agent that a slice is not there to be used."""


def settle_request(desk: Desk, request: RequestId) -> None:
    """Look at one request and want what follows."""
    desk.opening.let_go(request)
    asked = desk.world.requests.get(request)
    entries = {a: desk.world.ledger[a] for a in desk.world.allocations_of.get(request, ())}
    for allocation, entry in entries.items():
        _settle_entry(desk, allocation, entry, asked)
    if isinstance(asked, AllocationRequested):
        _settle_asked(desk, request, asked, entries)
        if _is_told_of_its_loss(desk, request, asked, entries):
            return
    else:
        desk.queue.remove(request)
        _settle_ended(desk, request, asked, entries)
    if request not in desk.queue and request not in desk.opening.holds:
        _end_waiting(desk, request)


# -- one ledger entry ---------------------------------------------------------------------------------------------


def _settle_entry(desk: Desk, allocation: AllocationId, entry: LedgerEntry, asked: RequestFact | None) -> None:
    if isinstance(entry, Closed):
        return
    booking = entry.booking
    address = subjects.ledger(booking.node, allocation)
    if desk.outbox.busy(address):
        return
    slice_ = desk.world.slices.get(allocation)
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
    if isinstance(entry, Grant):
        cause = _why_revoke(desk, entry, asked)
    else:  # one that landed late, of another life of the broker, is acted on by no agent: order it again
        cause = entry.cause if entry.incarnation != desk.world.incarnation else None
    if cause is not None:
        if isinstance(slice_, FAILED):
            desk.attempts.failed(booking.request, (device.gpu for device in booking.devices), desk.now)
        revoke = Revoke(revision=entry.revision + 1, incarnation=desk.world.incarnation, booking=booking, cause=cause)
        desk.commit(address, revoke, booking.request)


def _why_revoke(desk: Desk, grant: Grant, asked: RequestFact | None) -> str | None:
    """Why a grant shall not stand; None when it shall. An orphan (nobody asks) is not judged here."""
    booking = grant.booking
    binding = desk.world.bindings.get(booking.request)
    slice_ = desk.world.slices.get(booking.allocation)
    if isinstance(asked, RequestWithdrawn):
        return asked.cause
    if isinstance(asked, RequestRejected) and asked.revision >= booking.request_revision:
        return "request rejected"  # an older rejection was mended since, and is only read late
    if isinstance(binding, Bound) and binding.allocation != booking.allocation:
        return "surplus: the request is bound elsewhere"
    if not isinstance(binding, Bound) and _has_another(desk, asked, booking.allocation):
        return "surplus: its pod was given another slice, which stands"
    if isinstance(binding, Released):
        return f"released: {binding.cause}"
    if isinstance(binding, Refused) and binding.request_revision >= booking.request_revision:
        return "refused"
    if grant.incarnation != desk.world.incarnation and not grant.adopted:
        return "written in another life of the broker: no agent will act on it"
    if isinstance(slice_, SliceDegraded) and not isinstance(binding, Bound) and not _is_held(asked, booking.allocation):
        return f"its devices vanished before it was bound: {slice_.message}"
    if isinstance(slice_, FAILED) and slice_.revision >= grant.revision:
        return f"making the slice failed: {slice_.message}"
    return None


def _has_another(desk: Desk, asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether its source remembers another slice than this one, and that is granted: the pod is there, or nowhere."""
    held = asked.held if isinstance(asked, AllocationRequested) else None
    if held is None or held.allocation == allocation:
        return False
    return isinstance(desk.world.ledger.get(held.allocation), Grant)


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
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> None:
    address = subjects.binding(request)
    binding = desk.world.bindings.get(request)
    grants = {a: e for a, e in entries.items() if isinstance(e, Grant) and _why_revoke(desk, e, asked) is None}
    if desk.outbox.busy(address) or isinstance(binding, Released):
        desk.queue.remove(request)
        return
    if isinstance(binding, Bound):
        desk.queue.remove(request)
        _follow_bound(desk, request, binding, entries)
        return
    held = asked.held
    if held is not None and held.allocation not in grants and _is_pinned_elsewhere(desk, request, asked, entries):
        desk.queue.remove(request)
        return
    for allocation, grant in _bindable(grants, held).items():
        if grant.booking.node in desk.world.removed:
            continue  # bound when its agent comes back, and given up when it does not
        bound = _bound_of(desk, allocation, grant, revision=1)
        if bound is not None:
            desk.queue.remove(request)
            desk.commit(address, bound, request)
            return
    if isinstance(binding, Refused) and binding.request_revision >= asked.revision:
        desk.queue.remove(request)
        return
    if grants or request in desk.committing:
        desk.queue.remove(request)
        return
    node = waits_for_node(desk, request, asked.held)
    if node is not None:
        desk.queue.remove(request)
        say_that_it_waits(desk, request, asked, node)
        return
    _refuse_or_queue(desk, request, asked)


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


def _is_held(asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether a source remembers that its pod has this slice, or may (it is silent)."""
    if not isinstance(asked, AllocationRequested):
        return True
    return asked.held is not None and asked.held.allocation == allocation


def _is_told_of_its_loss(
    desk: Desk, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a pod's slice was lost, and its binding with the broker: it is told, for nothing can be bound now."""
    if desk.world.bindings.get(request) is not None or request in desk.committing:
        return False
    lost = _lost_slice(desk, (a for a, entry in entries.items() if isinstance(entry, Grant)))
    if lost is None or not _is_held(asked, lost.allocation):
        return False
    node = desk.world.slice_nodes[lost.allocation]
    reason = ReasonCount(reason=WaitReason.GPU_UNHEALTHY, count=1, of="GPUs")
    say_why(desk, request, asked, f"its slice on {node}: {lost.message}", reason)
    return True


def _lost_slice(desk: Desk, grants: Iterable[AllocationId]) -> SliceDegraded | None:
    """The word of a granted slice whose devices vanished."""
    slices = (desk.world.slices.get(allocation) for allocation in grants)
    return next((slice_ for slice_ in slices if isinstance(slice_, SliceDegraded)), None)


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
    shape = shape_of(asked)
    refusal = None
    if shape not in desk.possible:
        refusal = refuse(desk.fleet, asking_of(asked), max_gpus_per_node=desk.rules.max_gpus_per_node)
    if refusal is not None:
        desk.queue.remove(request)
        refused = Refused(request=request, request_revision=asked.revision, refusal=refusal)
        desk.commit(subjects.binding(request), refused, request)
        return
    desk.possible.add(shape)
    if desk.attempts.avoided(request, desk.now):
        shape = alone(shape, request)
    elif desk.nothing_else_to_do and shape not in desk.queue.shapes:
        try_at_once(desk, request, asked, shape)
        return
    sequence = desk.world.sequences.get(subjects.request(request).subject, 0)
    if desk.queue.add(request, shape, -asked.priority, sequence):
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
    if any(not isinstance(entry, Closed) for entry in entries.values()):
        return  # `Released` is said after SliceGone, never before
    if isinstance(binding, Bound) and binding.allocation not in entries and binding.allocation not in desk.world.lost:
        return  # its entry is still on its way to us
    if isinstance(asked, RequestWithdrawn) and not isinstance(binding, Released) and not asked.closing:
        if waits_for_node(desk, request, asked.held) is not None:
            return
        if not entries and waits_for_nodes(desk, request):
            return
        _release(desk, request, asked.cause)
        return
    if isinstance(asked, RequestWithdrawn) and asked.closing:
        desk.attempts.forget(request)
    if isinstance(binding, Bound) and (asked is None or isinstance(asked, RequestWithdrawn)):
        held = Held(node=binding.node, allocation=binding.allocation)
        if waits_for_node(desk, request, held) is None:  # a late Bound may be older than this life of the broker
            _release(desk, request, "nobody asks for it any more")


def _release(desk: Desk, request: RequestId, cause: str) -> None:
    released = Released(request=request, cause=cause)
    desk.commit(subjects.binding(request), released, request, ttl_s=desk.rules.closing_ttl_s)


def _end_waiting(desk: Desk, request: RequestId) -> None:
    """`sluice.waiting` shall not go on saying that a request waits."""
    address = subjects.waiting(request)
    said = desk.outbox.kept(address) or desk.world.waiting.get(request)
    if said is not None and not isinstance(said, WaitOver):
        over = WaitOver(request=request)
        desk.outbox.keep(address, over, request=request, ttl_s=desk.rules.closing_ttl_s)
