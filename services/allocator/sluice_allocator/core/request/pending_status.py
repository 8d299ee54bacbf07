"""Requests that publish a waiting reason of their own, not the queue's. Those that lost their slice, those whose place
is still being freed, and those of a gang."""

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.reconcile import tell_gang_reason
from sluice_allocator.core.reservations.reservation import say_for_whom_it_waits
from sluice_allocator.core.state.bus_cache import Entries
from sluice_allocator.core.state.context import say_why
from sluice_allocator.core.state.facts import is_held


def tell_own_reason(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: Entries) -> bool:
    if entries and (_tell_of_loss(ctx, request, asked, entries) or _tell_of_promise(ctx, request, asked, entries)):
        return True
    if request not in ctx.gangs.member_of:
        return False
    ctx.gangs.note_hold(request, holds=request in ctx.node_waits.node_of)
    return tell_gang_reason(ctx, request, asked)


def _tell_of_loss(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: Entries) -> bool:
    lost = None
    for allocation, entry in entries.items():
        slice_ = ctx.facts.slices.get(allocation)
        if lost is None and isinstance(slice_, msg.SliceDegraded) and isinstance(entry, msg.Grant):
            lost = slice_
    if lost is None or not is_held(asked, lost.allocation) or request in ctx.committing:
        return False
    if isinstance(ctx.facts.answer_to(request), (msg.Bound, msg.Refused, msg.Released)):
        return False
    node = ctx.facts.slice_nodes[lost.allocation]
    reason = ReasonCount(reason=WaitReason.GPU_UNHEALTHY, count=1, of="GPUs")
    say_why(ctx, request, asked, f"its slice on {node}: {lost.message}", reason)
    return True


def _tell_of_promise(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, entries: Entries) -> bool:
    grants = [entry for entry in entries.values() if isinstance(entry, msg.Grant) and entry.after]
    if not grants or not isinstance(ctx.facts.answer_to(request), msg.Waived | None):
        return False
    left = [grant for grant in grants if grant.booking.allocation not in ctx.facts.waived_by(request)]
    return any(say_for_whom_it_waits(ctx, request, asked, grant) for grant in left)
