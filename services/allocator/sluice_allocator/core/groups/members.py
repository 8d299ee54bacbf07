"""One pod of a group as the bus shows it: whether it has a place, a slice, a binding."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Grant,
    Refused,
    Released,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceQuarantined,
    SliceReady,
    Waived,
)
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.groups.gangs import NOT_GRANTED, Member

NOT_USABLE = (SliceFailed, SliceQuarantined, SliceDegraded, SliceGone)
"""Statuses of a slice on which no group should start."""


def member_of_group(desk: Desk, request: RequestId) -> Member | None:
    """The state of one pod; None when it is over or refused, and so not counted."""
    asked, binding = desk.world.requests.get(request), desk.world.answer_to(request)
    if not isinstance(asked, AllocationRequested) or asked.group is None or isinstance(binding, Refused | Released):
        return None
    sequences = desk.world.sequences
    waived = binding.allocations if isinstance(binding, Waived) else ()
    together = isinstance(binding, Waived) and bool(waived) and not binding.alone
    waived_at = sequences.get(subjects.binding(request).subject, -1) if together else -1
    placed, ready, granted_at = request in desk.committing or request in desk.opening.holds, False, NOT_GRANTED
    adopted = False
    for allocation in desk.world.allocations_of.get(request, ()):
        entry, slice_ = desk.world.ledger[allocation], desk.world.slices.get(allocation)
        if not isinstance(entry, Grant) or allocation in waived or isinstance(slice_, NOT_USABLE):
            continue
        placed = True
        adopted |= entry.adopted
        ready |= isinstance(slice_, SliceReady) and slice_.revision == entry.revision
        address = subjects.ledger(entry.booking.node, allocation)
        granted_at = min(granted_at, sequences.get(address.subject, granted_at))
    return Member(
        request=request,
        name=asked.name,
        size=asked.group.size,
        priority=desk.priority_of(asked.namespace, asked.priority),
        sequence=desk.world.came_at(request),
        started=isinstance(binding, Bound) or asked.held is not None,
        placed=placed,
        ready=ready,
        adopted_for=asked.source if adopted else None,
        granted_at=granted_at,
        waived_at=waived_at,
    )
