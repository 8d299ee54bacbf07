"""
Defragmentation: moves movable pods so that a request fits that has no place now. Always proposed, done if enabled.

It takes two steps, each a fact before the next: the request gets a reservation on the place that those pods are on (a
Grant with `after`, as aging writes it), and each pod that a reservation waits for is moved (`moving` books its new
place first). So a reservation of any origin is helped along, and a restart between the two finds what is left to do.

Pods are only moved for a request that gains more than they are worth together, at most one per so many arrived
requests, never one that was moved lately, and only with their owner's permission. A move evicts, so none is made for
a request that does not preempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Revoke
from sluice_allocator.core.booking import booking_of
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.given import GivenDevice, given
from sluice_allocator.core.limits.quotas import forbids_place
from sluice_allocator.core.moves.moving import book_move, exact_place, has_stayed, may_move_one, mover_of
from sluice_allocator.core.placement import Asking, asking_of
from sluice_allocator.core.placement.defragmenting import MayMove, Move, MovePlan, plan_moves
from sluice_allocator.core.waiting.promised import is_promise, standing_promise, unfinished

PROMISES_HELPED = 2
"""Most reservations looked at per tick."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A pod that would be moved: what it has, where, and its new place. One restart."""

    namespace: str
    name: str
    from_node: NodeName
    to_node: NodeName
    memory_mib: int
    rested: bool
    """Whether it has stayed long enough to be moved now."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where a waiting request would fit, and the pods to move for it. Memory in MiB."""

    node: NodeName
    devices: tuple[GivenDevice, ...]
    moved: tuple[Moved, ...]
    gains_mib: int
    moves_mib: int
    is_done: bool
    """Whether this allocator carries it out by itself; otherwise it is only proposed."""


def propose(desk: Desk, request: RequestId, asked: AllocationRequested) -> Proposal | None:
    """The pods to move so that a waiting request fits now; None where no move helps. Changes nothing."""
    if asked.group is not None or not asked.preempts:
        return None
    plan = _plan(desk, request, asked, lambda allocation: asking_of_mover(desk, allocation))
    if plan is None:
        return None
    moved = moved_pods(desk, plan.moves)
    gpus = desk.fleet.gpus
    devices = tuple(given(device, gpus[device.gpu].model) for device in plan.place.devices)
    is_done = desk.rules.defragment and plan.moves_mib < plan.gains_mib
    return Proposal(plan.place.node, devices, tuple(moved), plan.gains_mib, plan.moves_mib, is_done)


def moved_pods(desk: Desk, moves: Iterable[Move]) -> list[Moved]:
    """The pods of planned moves."""
    moved = []
    for move in moves:
        booking = desk.fleet.booking(move.allocation)
        if booking is not None:
            memory_mib = desk.fleet.usage_of(booking.devices).memory_mib
            rested = has_stayed(desk, move.allocation)
            moved.append(Moved(booking.namespace, booking.name, booking.node, move.to.node, memory_mib, rested))
    return moved


def defragment(desk: Desk) -> None:
    """Time passed: help a few reservations along, and make one more if enough requests arrived to pay for it."""
    if not desk.rules.defragment:
        return
    for _ in range(min(PROMISES_HELPED, len(desk.moves.promises))):
        allocation = next(iter(desk.moves.promises))
        desk.moves.promises.move_to_end(allocation)
        promise = desk.world.ledger.get(allocation)
        if isinstance(promise, Grant) and is_promise(desk, promise):
            _help(desk, promise)
    if desk.moves.for_room and may_move_one(desk):
        _promise_by_moving(desk)


def _promise_by_moving(desk: Desk) -> None:
    """Try one waiting request, in turn."""
    turn = desk.moves.looked_at = desk.queue.head_after(desk.moves.looked_at)
    asked = desk.world.requests.get(turn[2]) if turn is not None else None
    if turn is None or not isinstance(asked, AllocationRequested) or asked.group is not None or not asked.preempts:
        return
    request = turn[2]
    if request in desk.committing or standing_promise(desk, request) is not None:
        return
    plan = _plan(desk, request, asked, lambda allocation: _asking_of_rested(desk, allocation))
    if plan is None or plan.moves_mib >= plan.gains_mib or len(plan.moves) > desk.moves.for_room:
        return
    after = tuple(move.allocation for move in plan.moves)
    if forbids_place(desk, request, asked.namespace, plan.place.devices, after):
        return
    desk.queue.remove(request)
    desk.grant(booking_of(desk, request, asked, plan.place), after)


def _help(desk: Desk, promise: Grant) -> None:
    """Move one pod that a reservation waits for, if all its predecessors go or may be moved, and that is worth it."""
    asked = desk.world.requests.get(promise.booking.request)
    if isinstance(asked, AllocationRequested) and not asked.preempts:
        return
    movable: list[AllocationId] = []
    for allocation in unfinished(desk, promise):
        if isinstance(desk.world.ledger.get(allocation), Revoke) or _is_moving(desk, allocation):
            continue
        if _asking_of_rested(desk, allocation) is None:
            return
        movable.append(allocation)
    bookings = (desk.fleet.booking(allocation) for allocation in movable)
    moved_mib = sum(desk.fleet.usage_of(booking.devices).memory_mib for booking in bookings if booking is not None)
    if not movable or moved_mib >= desk.fleet.usage_of(promise.booking.devices).memory_mib:
        return
    if len(movable) > desk.rules.defragment_moves_max or not desk.moves.for_room or not may_move_one(desk):
        return
    mover = mover_of(desk, movable[0])
    place = exact_place(desk, mover) if mover is not None else None
    if mover is not None and place is not None and book_move(desk, mover, place):
        desk.moves.moved_for_room()


def _is_moving(desk: Desk, allocation: AllocationId) -> bool:
    """Whether a place is already kept for the pod with an allocation."""
    return any(other in desk.moves.standing for other in desk.world.promises.get(allocation, ()))


def _plan(desk: Desk, request: RequestId, asked: AllocationRequested, may_move: MayMove) -> MovePlan | None:
    return plan_moves(
        desk.fleet,
        replace(asking_of(asked), substitute=False),
        desk.attempts.avoided(request, desk.now),
        shown=desk.shown,
        may_move=may_move,
        moves_max=desk.rules.defragment_moves_max,
    )


def asking_of_mover(desk: Desk, allocation: AllocationId) -> Asking | None:
    """What to search for a pod that may be moved for others."""
    mover = mover_of(desk, allocation)
    if mover is None or not mover.asked.leeway.movable:
        return None
    return replace(asking_of(mover.asked), substitute=False)


def _asking_of_rested(desk: Desk, allocation: AllocationId) -> Asking | None:
    """The same for one that was not moved lately."""
    asking = asking_of_mover(desk, allocation)
    return asking if asking is not None and has_stayed(desk, allocation) else None
