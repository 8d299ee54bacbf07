"""
Backoff for a request whose place another allocator revoked, instead of granting the next place at once.

Several allocators may be active, and one of them may read late: its grants are revoked by the others, which know that
the pod is gone. Without this the two would go on as fast as the bus carries it.
"""

from collections.abc import Mapping

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Bound,
    Grant,
    LedgerEntry,
    Refused,
    Released,
    Revoke,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.request.grant_validity import AILING
from sluice_allocator.core.state.pending_status import say_why


def note_taken_back(ctx: SchedulerContext, message: AnyMessage | None) -> None:
    """Another process wrote this: note whether it ends an unbound grant of this process."""
    if not isinstance(message, Revoke):
        return
    booking = message.booking
    if not booking.allocation.startswith(f"{booking.request}_{ctx.run}_"):
        return
    if booking.request not in ctx.facts.requests or isinstance(ctx.facts.bindings.get(booking.request), Bound):
        return
    if isinstance(ctx.facts.slices.get(booking.allocation), AILING):
        return  # this process knows why, and avoids the GPU
    ctx.backoff.taken_back(booking.request, ctx.now)


def tell_backoff(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> bool:
    """Whether a request is in backoff now; publishes that."""
    if not ctx.backoff.rests(request, ctx.now):
        return False
    if not ctx.gangs.leads(request):  # a member keeps the turn of its group, which is not tried meanwhile (`trials`)
        ctx.queue.remove(request)
    count = sum(claim.gpus for claim in asked.claims)
    reason = ReasonCount(reason=WaitReason.GPU_AVOIDED, count=count, of="GPUs")
    message = f"another allocator revoked its last place; it is retried within {ctx.rules.taken_back_max_s:g} s"
    say_why(ctx, request, asked, message, reason)
    return True


def is_told_to_rest(ctx: SchedulerContext, request: RequestId, entries: Mapping[AllocationId, LedgerEntry]) -> bool:
    """Whether a request's backoff reason still holds: no grant or binding followed."""
    if not ctx.backoff.rests(request, ctx.now) or any(isinstance(entry, Grant) for entry in entries.values()):
        return False
    return not isinstance(ctx.facts.answer_to(request), Bound | Refused | Released)
