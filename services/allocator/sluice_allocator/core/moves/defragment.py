"""Defragmentation: moves movable pods so that a request fits that has no place now. Always proposed, done if enabled,
in two steps: the request gets a reservation where those pods are (as aging writes it), and each pod that a reservation
waits for is moved. Only for a request that gains more than they are worth together and that preempts, at most one pod
per so many arrivals, never one that was moved lately, and only with its owner's permission."""

from collections.abc import Iterable
from functools import partial

import msgspec

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Revoke
from sluice_allocator.core.key_index import in_turn
from sluice_allocator.core.moves.move import book_move, exact_place, exactly, has_stayed, may_move_one, mover_of
from sluice_allocator.core.moves.state import MoveContext
from sluice_allocator.core.placement import PlaceRequest
from sluice_allocator.core.placement.defragment import MayMove, Move, MovePlan, plan_emptying, plan_moves
from sluice_allocator.core.quotas.quota import forbids_place
from sluice_allocator.core.state.grant_facts import (
    DeviceAmount,
    device_amount,
    is_promise,
    standing_promise,
    unfinished,
)

PROMISES_HELPED = 2  # most reservations looked at per tick


class Moved(msgspec.Struct, frozen=True):
    """A pod that would be moved: what it has, where, and its new place. One restart."""

    namespace: str
    name: str
    from_node: NodeName
    to_node: NodeName
    memory_mib: int
    rested: bool  # whether it has stayed long enough to be moved now


class Proposal(msgspec.Struct, frozen=True):
    """Where a waiting request would fit, and the pods to move for it. Memory in MiB."""

    node: NodeName
    devices: tuple[DeviceAmount, ...]
    moves: tuple[Moved, ...]
    gains_mib: int
    moves_mib: int
    is_done: bool  # whether this allocator carries it out by itself; otherwise it is only proposed


def propose(ctx: MoveContext, request: RequestId, asked: AllocationRequested) -> Proposal | None:
    """The pods to move so that a waiting request fits now; None where no move helps. Changes nothing."""
    if asked.group is not None or not asked.preempts:
        return None
    plan = _plan(ctx, request, asked, partial(asking_of_mover, ctx))
    if plan is None:
        return None
    moved = moved_pods(ctx, plan.moves)
    gpus = ctx.cluster.gpus
    devices = tuple(device_amount(device, gpus[device.gpu].model) for device in plan.place.devices)
    is_done = ctx.rules.defragment and plan.moves_mib < plan.gains_mib
    return Proposal(plan.place.node, devices, tuple(moved), plan.gains_mib, plan.moves_mib, is_done)


def moved_pods(ctx: MoveContext, moves: Iterable[Move]) -> list[Moved]:
    moved = []
    for move in moves:
        booking = ctx.cluster.booking(move.allocation)
        if booking is not None:
            memory_mib = ctx.cluster.memory_mib([move.allocation])
            rested = has_stayed(ctx, move.allocation)
            moved.append(Moved(booking.namespace, booking.name, booking.node, move.to.node, memory_mib, rested))
    return moved


def defragment(ctx: MoveContext) -> None:
    """Time passed: help a few reservations along, and make one more if enough requests arrived to pay for it."""
    if not ctx.rules.defragment:
        return
    for allocation in in_turn(ctx.moves.promises, PROMISES_HELPED):
        promise = ctx.facts.granted(allocation)
        if promise is not None and is_promise(ctx, promise):
            _help(ctx, promise)
    if ctx.moves.for_room and may_move_one(ctx):
        _promise_by_moving(ctx)


def _promise_by_moving(ctx: MoveContext) -> None:
    turn = ctx.moves.looked_at = ctx.queue.head_after(ctx.moves.looked_at)
    asked = ctx.facts.wanted(turn[2]) if turn is not None else None
    if turn is None or asked is None or asked.group is not None or not asked.preempts:
        return
    request = turn[2]
    if request in ctx.committing or standing_promise(ctx, request) is not None:
        return
    plan = _plan(ctx, request, asked, partial(_asking_of_rested, ctx))
    if plan is None or plan.moves_mib >= plan.gains_mib or len(plan.moves) > ctx.moves.for_room:
        return
    after = tuple(move.allocation for move in plan.moves)
    if forbids_place(ctx, request, asked.namespace, plan.place.devices, after):
        return
    ctx.queue.remove(request)
    ctx.grant(ctx.booking_of(request, asked, plan.place), after)


def _help(ctx: MoveContext, promise: Grant) -> None:
    """Move one pod that a reservation waits for, if all its predecessors go or may be moved, and that is worth it."""
    asked = ctx.facts.wanted(promise.booking.request)
    if asked is not None and not asked.preempts:
        return
    movable: list[AllocationId] = []
    for allocation in unfinished(ctx, promise):
        is_moving = any(other in ctx.moves.standing for other in ctx.facts.promises.get(allocation, ()))
        if is_moving or isinstance(ctx.facts.ledger.get(allocation), Revoke):
            continue
        if _asking_of_rested(ctx, allocation) is None:
            return
        movable.append(allocation)
    gains_mib = ctx.cluster.usage_of(promise.booking.devices).memory_mib
    if not movable or ctx.cluster.memory_mib(movable) >= gains_mib:
        return
    if len(movable) > ctx.rules.defragment_moves_max or not ctx.moves.for_room or not may_move_one(ctx):
        return
    mover = mover_of(ctx, movable[0])
    place = exact_place(ctx, mover) if mover is not None else None
    if mover is not None and place is not None and book_move(ctx, mover, place):
        ctx.moves.moved_for_room()


def _plan(ctx: MoveContext, request: RequestId, asked: AllocationRequested, may_move: MayMove) -> MovePlan | None:
    return plan_moves(
        ctx.cluster,
        exactly(asked),
        ctx.backoff.avoided(request, ctx.now),
        shown=ctx.shown,
        may_move=may_move,
        moves_max=ctx.rules.defragment_moves_max,
    )


def asking_of_mover(ctx: MoveContext, allocation: AllocationId) -> PlaceRequest | None:
    mover = mover_of(ctx, allocation)
    return exactly(mover.asked) if mover is not None and mover.asked.leeway.movable else None


def _asking_of_rested(ctx: MoveContext, allocation: AllocationId) -> PlaceRequest | None:
    asking = asking_of_mover(ctx, allocation)
    return asking if asking is not None and has_stayed(ctx, allocation) else None


NODES_MAX = 64  # most nodes with slices looked at, those with the fewest first
MOVES_MAX = 8  # most pods moved off one node: each is a restart


class Emptied(msgspec.Struct, frozen=True):
    """A node, and the pods to move off it; none where nothing is on it now."""

    node: NodeName
    moves: tuple[Moved, ...] = ()


def consolidate(ctx: MoveContext) -> list[Emptied]:
    """Nodes without a slice, then those that would have none, one after the other: no pod moves to either kind."""
    usable = [node for node in ctx.cluster.nodes.values() if node.gpus]
    emptied = [Emptied(node.name) for node in usable if not node.taken]
    crowded = sorted((node for node in usable if 0 < len(node.taken) <= MOVES_MAX), key=lambda node: len(node.taken))
    without, targets = {each.node: None for each in emptied}, dict[NodeName, None]()
    for node in crowded[:NODES_MAX]:
        if node.name in targets:
            continue
        avoid, may_move = (*without, *targets), partial(asking_of_mover, ctx)
        moves = plan_emptying(ctx.cluster, node.name, avoid, shown=ctx.shown, may_move=may_move)
        if moves is not None:
            without[node.name] = None
            targets |= dict.fromkeys(move.to.node for move in moves)
            emptied.append(Emptied(node.name, tuple(moved_pods(ctx, moves))))
    return emptied
