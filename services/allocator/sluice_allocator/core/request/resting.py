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
from sluice_allocator.core.request.grant_validity import AILING
from sluice_allocator.core.request.recovery import say_why
from sluice_allocator.core.state.context import Desk


def note_taken_back(desk: Desk, message: AnyMessage | None) -> None:
    """Another process wrote this: note whether it ends an unbound grant of this process."""
    if not isinstance(message, Revoke):
        return
    booking = message.booking
    if not booking.allocation.startswith(f"{booking.request}_{desk.run}_"):
        return
    if booking.request not in desk.world.requests or isinstance(desk.world.bindings.get(booking.request), Bound):
        return
    if isinstance(desk.world.slices.get(booking.allocation), AILING):
        return  # this process knows why, and avoids the GPU
    desk.attempts.taken_back(booking.request, desk.now)


def tell_backoff(desk: Desk, request: RequestId, asked: AllocationRequested) -> bool:
    """Whether a request is in backoff now; publishes that."""
    if not desk.attempts.rests(request, desk.now):
        return False
    if not desk.gangs.leads(request):  # a member keeps the turn of its group, which is not tried meanwhile (`trials`)
        desk.queue.remove(request)
    count = sum(claim.gpus for claim in asked.claims)
    reason = ReasonCount(reason=WaitReason.GPU_AVOIDED, count=count, of="GPUs")
    message = f"another allocator revoked its last place; it is retried within {desk.rules.taken_back_max_s:g} s"
    say_why(desk, request, asked, message, reason)
    return True


def is_told_to_rest(desk: Desk, request: RequestId, entries: Mapping[AllocationId, LedgerEntry]) -> bool:
    """Whether a request's backoff reason still holds: no grant or binding followed."""
    if not desk.attempts.rests(request, desk.now) or any(isinstance(entry, Grant) for entry in entries.values()):
        return False
    return not isinstance(desk.world.answer_to(request), Bound | Refused | Released)
