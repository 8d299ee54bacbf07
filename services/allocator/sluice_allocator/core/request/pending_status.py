"""
Requests that publish a waiting reason of their own, not the queue's.

Those that lost their slice, those whose place is still being freed, those in backoff, and those of a group.
"""

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Grant,
    LedgerEntry,
    Refused,
    Released,
    SliceDegraded,
    Waived,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.reconcile import tell_group_reason
from sluice_allocator.core.request.resting import is_told_to_rest
from sluice_allocator.core.reservations.reservation import say_for_whom_it_waits
from sluice_allocator.core.state.facts import is_held
from sluice_allocator.core.state.pending_status import say_why


def tell_own_reason(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a request publishes a reason of its own why it is not bound."""
    if entries and (_tell_of_loss(ctx, request, asked, entries) or _tell_of_promise(ctx, request, asked, entries)):
        return True
    if is_told_to_rest(ctx, request, entries):
        return True
    if request not in ctx.gangs.member_of:
        return False
    ctx.gangs.note_hold(request, holds=request in ctx.node_waits.node_of)
    return tell_group_reason(ctx, request, asked)


def _tell_of_loss(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a pod's slice was lost, and its binding with the broker: nothing can be bound now."""
    if isinstance(ctx.facts.answer_to(request), (Bound, Refused, Released)) or request in ctx.committing:
        return False
    lost = _lost_slice(ctx, entries)
    if lost is None or not is_held(asked, lost.allocation):
        return False
    node = ctx.facts.slice_nodes[lost.allocation]
    reason = ReasonCount(reason=WaitReason.GPU_UNHEALTHY, count=1, of="GPUs")
    say_why(ctx, request, asked, f"its slice on {node}: {lost.message}", reason)
    return True


def _tell_of_promise(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: dict[AllocationId, LedgerEntry]
) -> bool:
    """Whether a request has a place that is still being freed."""
    binding = ctx.facts.answer_to(request)
    if not isinstance(binding, Waived | None):
        return False
    waived = binding.allocations if binding is not None else ()
    grants = [entry for entry in entries.values() if isinstance(entry, Grant) and entry.after]
    left = [grant for grant in grants if grant.booking.allocation not in waived]
    return any(say_for_whom_it_waits(ctx, request, asked, grant) for grant in left)


def _lost_slice(ctx: SchedulerContext, entries: dict[AllocationId, LedgerEntry]) -> SliceDegraded | None:
    """The status of a granted slice whose devices vanished."""
    for allocation, entry in entries.items():
        slice_ = ctx.facts.slices.get(allocation)
        if isinstance(slice_, SliceDegraded) and isinstance(entry, Grant):
            return slice_
    return None
