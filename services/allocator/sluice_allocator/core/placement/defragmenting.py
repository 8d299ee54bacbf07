"""
Which pods to move where, so that a request fits that has no place now: a plan, with what it gains and what it costs.

The place is found by the search for promises, told to wait only for pods that may be moved and have somewhere to go;
each of them is then given a place by the search that serves everybody, on trial fleets of single nodes, the new places
of the others and of the request taken. So the cost is bounded as theirs is. Nothing is booked here.
"""

from collections.abc import Callable, Mapping
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
"""What to look for on behalf of a pod that may be moved; None: it may not."""
SHAPES_LOOKED_UP_MAX = 64
"""Of so many different shapes of pods in the way it is looked up whether they have somewhere to go."""
_TRIED = "\0plan"
"""Whose places are taken on trial; no allocation has this name."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Move:
    """One pod, and where it would go."""

    allocation: AllocationId
    to: Place


@dataclass(frozen=True, slots=True)
class MovePlan:
    """
    The place that a request would have, and who would be moved for it.

    Memory in MiB: `gains_mib` of the request's devices, `moves_mib` of those that are moved. Each move is one restart.
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
    The plan that moves fewest; None where there is room, where others are in the way too, or they have nowhere to go.

    `shown` is what the fleet was told of each node.
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


def _largest_first(fleet: Fleet, allocations: tuple[AllocationId, ...]) -> list[AllocationId]:
    """Who needs most is given a place first: the others fit beside him more easily than he beside them."""

    def size(allocation: AllocationId) -> int:
        booking = fleet.booking(allocation)
        return fleet.usage_of(booking.devices).memory_mib if booking is not None else 0

    return sorted(allocations, key=lambda each: (-size(each), each))


@dataclass(slots=True)
class _Destinations:
    """Whether pods have somewhere to go at all, looked up once for all that ask for the same."""

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
    """The nodes of a plan as they would be: everybody where he is, and the new places taken besides."""

    fleet: Fleet
    shown: Mapping[NodeName, NodeSnapshot]
    destinations: _Destinations
    _nodes: dict[NodeName, Fleet] = field(default_factory=dict)
    _gpus: dict[GpuUuid, None] = field(default_factory=dict)
    _idle: dict[GpuUuid, None] = field(default_factory=dict)
    """Taken for pods that want idle GPUs: who is moved there would be in the way again."""
    _taken: int = 0

    def __enter__(self) -> Self:
        """What pods want of each other is looked up where everybody is known: there the new ones count meanwhile."""
        self.fleet.peers.quiet = True
        return self

    def __exit__(self, *_: object) -> None:
        """Take them back."""
        for number in range(1, self._taken + 1):
            self.fleet.peers.take(AllocationId(f"{_TRIED}{number}"))
        self.fleet.peers.quiet = False

    def move(self, allocation: AllocationId) -> Move | None:
        """A place for one of them: where nothing was taken yet if there is one, else beside what was."""
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
        """Take a place on trial. False when nobody has shown its node."""
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
