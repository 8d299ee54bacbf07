"""Plans which pods to move where so that a request fits. The search for reservations finds the place, waiting only for
movable pods; the common search finds each a new place on trial copies of single nodes. So the cost is bounded."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.reserve import find_reservation
from sluice_allocator.core.placement.search.context import Place
from sluice_allocator.core.placement.search.find import find_free, find_place_on
from sluice_allocator.core.placement.search.trial_pods import TrialPods
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest
from sluice_allocator.core.placement.spec.policies import policy_for

MayMove = Callable[[AllocationId], PlaceRequest | None]  # what to search for a movable pod; None if it may not be moved
SHAPES_LOOKED_UP_MAX = 64  # most different shapes of pods in the way for which a destination is looked up

_encoder = msgspec.msgpack.Encoder()


class Move(msgspec.Struct, frozen=True):
    """One pod, and its new place."""

    allocation: AllocationId
    to: Place


class MovePlan(msgspec.Struct, frozen=True):
    """A request's place, and the pods to move for it: `gains_mib` for it, `moves_mib` moved. A move is a restart."""

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
    """The plan that moves fewest pods; None if none helps or is needed. `shown`: each node's snapshot."""
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
    with TrialPods(cluster.peers) as pods:
        trial = _MoveTrial(cluster, shown, destinations, pods)
        moves = trial.move_all(promise.after) if trial.take(promise.place, request) else None
    if moves is None:
        return None
    gains_mib = cluster.usage_of(promise.place.devices).memory_mib
    return MovePlan(promise.place, moves, gains_mib, cluster.memory_mib(promise.after))


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
    avoid = dict.fromkeys(gpu.report.uuid for name in (node, *without) for gpu in cluster.nodes[name].all_gpus)
    with TrialPods(cluster.peers) as pods:
        return _MoveTrial(cluster, shown, _Destinations(cluster, may_move), pods, avoid).move_all(there)


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
        if shape not in self._known and len(self._known) < SHAPES_LOOKED_UP_MAX:
            self._known[shape] = find_free(self.cluster, request) is not None
        return self._known.get(shape, False)


@dataclass(slots=True)
class _MoveTrial:
    cluster: ClusterState
    shown: Mapping[NodeName, NodeSnapshot]
    destinations: _Destinations
    pods: TrialPods
    _gpus: dict[GpuUuid, None] = field(default_factory=dict)  # where only what is beside trial places is looked for
    _nodes: dict[NodeName, ClusterState] = field(default_factory=dict)
    _idle: dict[GpuUuid, None] = field(default_factory=dict)  # taken for pods that want idle ones: closed to others

    def move_all(self, allocations: Collection[AllocationId]) -> tuple[Move, ...] | None:
        """Places for all; None where one has none. Large pods first: small ones fit beside them more easily."""
        largest_first = sorted(allocations, key=lambda each: (-self.cluster.memory_mib([each]), each))
        moves = [self._move(allocation) for allocation in largest_first]
        found = tuple(move for move in moves if move is not None)
        return found if len(found) == len(moves) else None

    def _move(self, allocation: AllocationId) -> Move | None:
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
        self.pods.book(trial, place, request)
        return True
