"""
The word that nobody will be bound to some of a request's places, which are then taken back.

It is said where `Bound` would be said and under the same guard, so that one of the two is the last word about a place:
a process that judges by what it has read takes no slice from a pod that another one has bound meanwhile.

It must not judge whether a place is to be given back (`standing` and `groups` do).
"""

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Revoke, Waived
from sluice_allocator.core.desk import Desk


def waived(
    desk: Desk,
    request: RequestId,
    asked: AllocationRequested,
    allocations: list[AllocationId],
    cause: str,
    *,
    alone: bool = False,
) -> Waived:
    """
    Nobody will be bound to these, nor to those that were waived before and are not taken back yet.

    Not `alone` all of its group give back what they have, also where that was said before and is not done yet.
    """
    before = desk.world.bindings.get(request)
    known = before.allocations if isinstance(before, Waived) else ()
    still = tuple(each for each in known if each not in allocations and _is_taken_back(desk, each))
    return Waived(
        request=request,
        request_revision=asked.revision,
        allocations=(*still, *sorted(allocations)),
        cause=cause,
        incarnation=desk.world.incarnation,
        source=asked.source,
        alone=alone and not (isinstance(before, Waived) and still and not before.alone),
    )


def _is_taken_back(desk: Desk, allocation: AllocationId) -> bool:
    """Whether something that was waived is still to be taken back: what is closed stays in the ledger for hours."""
    return isinstance(desk.world.ledger.get(allocation), Grant | Revoke)


def waived_for(
    desk: Desk, request: RequestId, asked: AllocationRequested, causes: dict[AllocationId, str]
) -> Waived | None:
    """The word that places are not to be used, each for its cause; None where there are none."""
    if not causes:
        return None
    return waived(desk, request, asked, list(causes), "; ".join(dict.fromkeys(causes.values())), alone=True)
