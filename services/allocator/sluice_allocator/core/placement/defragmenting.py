"""
Plans which pods to move where so that a request fits that has no place now, with the plan's gain and cost.

The search for reservations finds the place, waiting only for movable pods with somewhere to go. The common search
then finds each of them a new place, on trial copies of single nodes with all new places taken. So the cost is bounded
as theirs is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, SourceName
from sluice.contracts.messages import Booking, NodeSnapshot
from sluice_allocator.core.placement.asking import Asking, Avoid
from sluice_allocator.core.placement.fleet import Fleet
from sluice_allocator.core.placement.looking import Place
from sluice_allocator.core.placement.peers import peer_of_asking
from sluice_allocator.core.placement.policies import policy_for
from sluice_allocator.core.placement.promising import find_promise
from sluice_allocator.core.placement.search import find_place, find_place_on

MayMove = Callable[[AllocationId], Asking | None]
"""What to search for a movable pod; None if it may not be moved."""
SHAPES_LOOKED_UP_MAX = 64
"""Most different shapes of pods in the way for which a destination is looked up."""
_TRIED = "\0plan"
"""Owner of places taken on trial; no allocation has this name."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Move:
    """One pod, and its new place."""

    allocation: AllocationId
    to: Place


@dataclass(frozen=True, slots=True)
class MovePlan:
    """
    The place that a request would have, and the pods to move for it.

    Memory in MiB: `gains_mib` of the request's devices, `moves_mib` of the moved ones. Each move is one restart.
    """

    place: Place
    moves: tuple[Move, ...]
    gains_mib: int
    moves_mib: int


def plan_moves(
    fleet: Fleet,
    asking: Asking,
    avoid: Avoid = frozenset(),
    *,
    shown: Mapping[NodeName, NodeSnapshot],
    may_move: MayMove,
    moves_max: int,
) -> MovePlan | None:
    """
    The plan that moves fewest pods; None if there is room, or no set of movable pods with destinations makes room.

    `shown` is the snapshot of each node.
    """
    if isinstance(find_place(fleet, asking, avoid), Place):
        return None
    destinations = _Destinations(fleet, may_move)
    promise = find_promise(
        fleet,
        asking,
        avoid,
        shown=shown,
        wait_for=lambda allocation: 1 if destinations.has_one(allocation) else None,
        open_to=lambda _: True,
    )
    if promise is None or not 0 < len(promise.after) <= moves_max:
        return None
    with _MoveTrial(fleet, shown, destinations) as trial:
        if not trial.take(promise.place, asking):
            return None
        moves = [trial.move(allocation) for allocation in _largest_first(fleet, promise.after)]
    found = tuple(move for move in moves if move is not None)
    if len(found) < len(moves):
        return None
    moved = (fleet.booking(move.allocation) for move in found)
    return MovePlan(
        promise.place,
        found,
        fleet.usage_of(promise.place.devices).memory_mib,
        sum(fleet.usage_of(booking.devices).memory_mib for booking in moved if booking is not None),
    )


def plan_emptying(
    fleet: Fleet,
    node: NodeName,
    without: Collection[NodeName],
    *,
    shown: Mapping[NodeName, NodeSnapshot],
    may_move: MayMove,
) -> tuple[Move, ...] | None:
    """New places for all pods of a node, on none of the nodes `without`; None where a pod has none or stays."""
    there = tuple(fleet.nodes[node].taken)
    if not all(may_move(allocation) for allocation in there):
        return None
    with _MoveTrial(fleet, shown, _Destinations(fleet, may_move)) as trial:
        trial.avoid(gpu.report.uuid for name in (node, *without) for gpu in fleet.nodes[name].all_gpus)
        moves = [trial.move(allocation) for allocation in _largest_first(fleet, there)]
    found = tuple(move for move in moves if move is not None)
    return found if len(found) == len(moves) else None


def _largest_first(fleet: Fleet, allocations: tuple[AllocationId, ...]) -> list[AllocationId]:
    """The largest pods are placed first: smaller ones fit beside them more easily than the reverse."""

    def size(allocation: AllocationId) -> int:
        booking = fleet.booking(allocation)
        return fleet.usage_of(booking.devices).memory_mib if booking is not None else 0

    return sorted(allocations, key=lambda each: (-size(each), each))


@dataclass(slots=True)
class _Destinations:
    """Whether pods have any destination, looked up once per shape."""

    fleet: Fleet
    may_move: MayMove
    _known: dict[bytes, bool] = field(default_factory=dict)

    def has_one(self, allocation: AllocationId) -> bool:
        asking = self.may_move(allocation)
        if asking is None:
            return False
        shape = _encoder.encode(asking if self.fleet.peers.tells_apart(asking) else replace(asking, labels={}))
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= SHAPES_LOOKED_UP_MAX:
                return False
            found = self._known[shape] = isinstance(find_place(self.fleet, asking), Place)
        return found


@dataclass(slots=True)
class _MoveTrial:
    """The nodes of a plan as they would be, with the new places taken as well."""

    fleet: Fleet
    shown: Mapping[NodeName, NodeSnapshot]
    destinations: _Destinations
    _nodes: dict[NodeName, Fleet] = field(default_factory=dict)
    _gpus: dict[GpuUuid, None] = field(default_factory=dict)
    _idle: dict[GpuUuid, None] = field(default_factory=dict)
    """GPUs taken for pods that want idle ones: no other pod moves there."""
    _taken: int = 0

    def __enter__(self) -> Self:
        """Terms between pods are evaluated in the real fleet: there the new places count meanwhile."""
        self.fleet.peers.quiet = True
        return self

    def __exit__(self, *_: object) -> None:
        """Undo the trial places."""
        for number in range(1, self._taken + 1):
            self.fleet.peers.take(AllocationId(f"{_TRIED}{number}"))
        self.fleet.peers.quiet = False

    def avoid(self, gpus: Iterable[GpuUuid]) -> None:
        """Move no pod there."""
        self._gpus |= dict.fromkeys(gpus)

    def move(self, allocation: AllocationId) -> Move | None:
        """A place for one pod: on untouched GPUs if possible, else beside trial places."""
        asking = self.destinations.may_move(allocation)
        assert asking is not None, "only movable pods are in the way"
        found = find_place(self.fleet, asking, frozenset(self._gpus))
        if isinstance(found, Place) and self.take(found, asking):
            return Move(allocation, found)
        for node, trial in self._nodes.items():
            beside = find_place_on(trial, asking, node, frozenset(self._idle))
            if beside is not None:
                self.take(beside, asking)
                return Move(allocation, beside)
        return None

    def take(self, place: Place, asking: Asking) -> bool:
        """Take a place on trial. False when its node has no snapshot."""
        trial = self._nodes.get(place.node)
        if trial is None:
            snapshot = self.shown.get(place.node)
            if snapshot is None:
                return False
            trial = self._nodes[place.node] = self.fleet.alone(snapshot)
            self._gpus |= dict.fromkeys(gpu.uuid for gpu in snapshot.gpus)
        pool = trial.stock.class_of(trial.nodes[place.node]).pool
        if policy_for(asking.node_policy, asking.gpu_policy, pool).idle_only:
            self._idle |= dict.fromkeys(device.gpu for device in place.devices)
        self._taken += 1
        name = f"{_TRIED}{self._taken}"
        self.fleet.peers.put(AllocationId(name), place.node, peer_of_asking(asking))
        trial.book(
            Booking(
                allocation=AllocationId(name),
                request=RequestId(name),
                request_revision=0,
                source=SourceName(_TRIED),
                owner=name,
                namespace=asking.namespace,
                name=name,
                node=place.node,
                devices=place.devices,
                room=asking.host.room,
            )
        )
        return True
