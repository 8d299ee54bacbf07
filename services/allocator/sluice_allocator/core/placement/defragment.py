"""Plans which pods to move where so that a request fits that has no place now, with the plan's gain and cost. The
search for reservations finds the place, waiting only for movable pods with somewhere to go. The common search then
finds each of them a new place, on trial copies of single nodes with all new places taken. So the cost is bounded as
theirs is."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, SourceName
from sluice.contracts.messages import Booking, NodeSnapshot
from sluice_allocator.core.placement.affinity.peers import peer_of_place_request
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.reserve import find_reservation
from sluice_allocator.core.placement.search.context import Place
from sluice_allocator.core.placement.search.find import find_free, find_place_on
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest
from sluice_allocator.core.placement.spec.policies import policy_for

MayMove = Callable[[AllocationId], PlaceRequest | None]  # what to search for a movable pod; None if it may not be moved
SHAPES_LOOKED_UP_MAX = 64  # most different shapes of pods in the way for which a destination is looked up
_TRIED = "\0plan"  # owner of places taken on trial; no allocation has this name

_encoder = msgspec.msgpack.Encoder()


class Move(msgspec.Struct, frozen=True):
    """One pod, and its new place."""

    allocation: AllocationId
    to: Place


class MovePlan(msgspec.Struct, frozen=True):
    """The place that a request would have, and the pods to move for it. Memory in MiB: `gains_mib` of the request's
    devices, `moves_mib` of the moved ones. Each move is one restart."""

    place: Place
    moves: tuple[Move, ...]
    gains_mib: int
    moves_mib: int


def plan_moves(
    cluster: ClusterState,
    request: PlaceRequest,
    avoid: Avoid = frozenset(),
    *,
    shown: Mapping[NodeName, NodeSnapshot],
    may_move: MayMove,
    moves_max: int,
) -> MovePlan | None:
    """The plan that moves fewest pods; None if there is room, or no set of movable pods with destinations makes room.
    `shown` is the snapshot of each node."""
    if find_free(cluster, request, avoid) is not None:
        return None
    destinations = _Destinations(cluster, may_move)
    promise = find_reservation(
        cluster,
        request,
        avoid,
        shown=shown,
        wait_for=lambda allocation: 1 if destinations.has_one(allocation) else None,
        open_to=lambda _: True,
    )
    if promise is None or not 0 < len(promise.after) <= moves_max:
        return None
    with _MoveTrial(cluster, shown, destinations) as trial:
        if not trial.take(promise.place, request):
            return None
        moves = [trial.move(allocation) for allocation in _largest_first(cluster, promise.after)]
    found = tuple(move for move in moves if move is not None)
    if len(found) < len(moves):
        return None
    moved = (cluster.booking(move.allocation) for move in found)
    return MovePlan(
        promise.place,
        found,
        cluster.usage_of(promise.place.devices).memory_mib,
        sum(cluster.usage_of(booking.devices).memory_mib for booking in moved if booking is not None),
    )


def plan_emptying(
    cluster: ClusterState,
    node: NodeName,
    without: Collection[NodeName],
    *,
    shown: Mapping[NodeName, NodeSnapshot],
    may_move: MayMove,
) -> tuple[Move, ...] | None:
    """New places for all pods of a node, on none of the nodes `without`; None where a pod has none or stays."""
    there = tuple(cluster.nodes[node].taken)
    if not all(may_move(allocation) for allocation in there):
        return None
    with _MoveTrial(cluster, shown, _Destinations(cluster, may_move)) as trial:
        trial.avoid(gpu.report.uuid for name in (node, *without) for gpu in cluster.nodes[name].all_gpus)
        moves = [trial.move(allocation) for allocation in _largest_first(cluster, there)]
    found = tuple(move for move in moves if move is not None)
    return found if len(found) == len(moves) else None


def _largest_first(cluster: ClusterState, allocations: tuple[AllocationId, ...]) -> list[AllocationId]:
    """The largest pods are placed first: smaller ones fit beside them more easily than the reverse."""

    def size(allocation: AllocationId) -> int:
        booking = cluster.booking(allocation)
        return cluster.usage_of(booking.devices).memory_mib if booking is not None else 0

    return sorted(allocations, key=lambda each: (-size(each), each))


@dataclass(slots=True)
class _Destinations:
    cluster: ClusterState
    may_move: MayMove
    _known: dict[bytes, bool] = field(default_factory=dict)

    def has_one(self, allocation: AllocationId) -> bool:
        request = self.may_move(allocation)
        if request is None:
            return False
        shape = _encoder.encode(request if self.cluster.peers.tells_apart(request) else replace(request, labels={}))
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= SHAPES_LOOKED_UP_MAX:
                return False
            found = self._known[shape] = find_free(self.cluster, request) is not None
        return found


@dataclass(slots=True)
class _MoveTrial:
    cluster: ClusterState
    shown: Mapping[NodeName, NodeSnapshot]
    destinations: _Destinations
    _nodes: dict[NodeName, ClusterState] = field(default_factory=dict)
    _gpus: dict[GpuUuid, None] = field(default_factory=dict)
    _idle: dict[GpuUuid, None] = field(default_factory=dict)  # taken for pods that want idle ones: closed to others
    _taken: int = 0

    def __enter__(self) -> Self:
        """Terms between pods are evaluated in the real cluster: there the new places count meanwhile."""
        self.cluster.peers.quiet = True
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(1, self._taken + 1):
            self.cluster.peers.take(AllocationId(f"{_TRIED}{number}"))
        self.cluster.peers.quiet = False

    def avoid(self, gpus: Iterable[GpuUuid]) -> None:
        self._gpus |= dict.fromkeys(gpus)

    def move(self, allocation: AllocationId) -> Move | None:
        """A place for one pod: on untouched GPUs if possible, else beside trial places."""
        request = self.destinations.may_move(allocation)
        assert request is not None, "only movable pods are in the way"
        found = find_free(self.cluster, request, frozenset(self._gpus))
        if found is not None and self.take(found, request):
            return Move(allocation, found)
        for node, trial in self._nodes.items():
            beside = find_place_on(trial, request, node, frozenset(self._idle))
            if beside is not None:
                self.take(beside, request)
                return Move(allocation, beside)
        return None

    def take(self, place: Place, request: PlaceRequest) -> bool:
        """Take a place on trial. False when its node has no snapshot."""
        trial = self._nodes.get(place.node)
        if trial is None:
            snapshot = self.shown.get(place.node)
            if snapshot is None:
                return False
            trial = self._nodes[place.node] = self.cluster.alone(snapshot)
            self._gpus |= dict.fromkeys(gpu.uuid for gpu in snapshot.gpus)
        pool = trial.index.class_of(trial.nodes[place.node]).pool
        if policy_for(request.node_policy, request.gpu_policy, pool).idle_only:
            self._idle |= dict.fromkeys(device.gpu for device in place.devices)
        self._taken += 1
        name = f"{_TRIED}{self._taken}"
        self.cluster.peers.put(AllocationId(name), place.node, peer_of_place_request(request))
        trial.book(
            Booking(
                allocation=AllocationId(name),
                request=RequestId(name),
                request_revision=0,
                source=SourceName(_TRIED),
                owner=name,
                namespace=request.namespace,
                name=name,
                node=place.node,
                devices=place.devices,
                room=request.host.room,
            )
        )
        return True
