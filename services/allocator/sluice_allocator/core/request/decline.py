"""
Declines some of a request's places: no pod will be bound to them, and they are then revoked.

`Waived` goes where `Bound` would, under the same guard, so that one of the two is the last message about a place: a
process that judges by what it has read takes no slice from a pod that another one bound meanwhile.

Whether a place is to be released is decided in `standing` and `groups`.
"""

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Revoke, Waived
from sluice_allocator.core.context import SchedulerContext


def waived(
    ctx: SchedulerContext,
    request: RequestId,
    asked: AllocationRequested,
    allocations: list[AllocationId],
    cause: str,
    *,
    alone: bool = False,
) -> Waived:
    """
    The waiver of these places, and of those waived before that are not revoked yet.

    Unless `alone`, the whole group releases its places, also where that was published before and is not done yet.
    """
    before = ctx.facts.bindings.get(request)
    known = before.allocations if isinstance(before, Waived) else ()
    still = tuple(each for each in known if each not in allocations and _is_taken_back(ctx, each))
    return Waived(
        request=request,
        request_revision=asked.revision,
        allocations=(*still, *sorted(allocations)),
        cause=cause,
        incarnation=ctx.facts.incarnation,
        source=asked.source,
        alone=alone and not (isinstance(before, Waived) and still and not before.alone),
    )


def _is_taken_back(ctx: SchedulerContext, allocation: AllocationId) -> bool:
    """Whether a waived place is still to be revoked: closed entries stay in the ledger for hours."""
    return isinstance(ctx.facts.ledger.get(allocation), Grant | Revoke)


def waived_for(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, causes: dict[AllocationId, str]
) -> Waived | None:
    """The waiver of places, each for its cause; None where there are none."""
    if not causes:
        return None
    return waived(ctx, request, asked, list(causes), "; ".join(dict.fromkeys(causes.values())), alone=True)
