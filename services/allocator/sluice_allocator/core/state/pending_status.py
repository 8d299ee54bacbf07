"""Publishes why a request is not bound, at a bounded rate, for another allocator may know more."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Pending
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.state.context import Context


def say_why(ctx: Context, request: RequestId, asked: AllocationRequested, message: str, reason: ReasonCount) -> None:
    """Publish why the pod is not bound; the same reason at a bounded rate, for another allocator may know more."""
    kept = ctx.outbox.kept(subjects.waiting(request))
    if kept is None and request in ctx.facts.waiting:  # another allocator's: two would answer each other forever
        is_new = ctx.backoff.last_said(request) is not reason.reason
    else:
        is_new = not isinstance(kept, Pending) or kept.message != message
    is_loss = reason.reason is not WaitReason.NODE_NOT_OPEN
    if not ctx.backoff.admit_pending(request, ctx.now, reason=reason.reason, is_news=is_loss and is_new):
        return
    pending = Pending(request=request, request_revision=asked.revision, message=message, reasons=(reason,))
    ctx.outbox.keep(subjects.waiting(request), pending, request=request)
