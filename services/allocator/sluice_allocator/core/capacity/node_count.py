"""Count the nodes that pools lack: what waits is placed on new, empty nodes, by the search for real places. The cost
follows from the bounds here and not from the cluster. An undercount is made up for when those nodes have come."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Booking, PoolDemand
from sluice_allocator.core.capacity.templates import memory_mib, new_node
from sluice_allocator.core.placement import ClusterState, Place, PlaceRequest, find_free
from sluice_allocator.core.placement.affinity.peers import peer_of_place_request

PLACES_MAX = 256  # most places looked for in one count
_TRIED = "\0capacity"  # owner of places taken on trial; no allocation has this name


@dataclass(frozen=True, slots=True)
class Waiting:
    """`count` equal requests that have no place, and what each may have instead, in this order."""

    key: bytes
    asking: PlaceRequest
    count: int = 1
    instead: tuple[PlaceRequest, ...] = ()


@dataclass(slots=True)
class Missing:
    """How many more nodes of each pool would serve, and the pool that would serve each shape."""

    nodes: dict[str, int] = field(default_factory=dict)
    pool_of: dict[bytes, str] = field(default_factory=dict)


def count_missing(
    cluster: ClusterState, pools: Mapping[str, PoolDemand], waiting: Iterable[Waiting], *, nodes_max: int
) -> Missing:
    """The nodes to add, at most `nodes_max` of each pool; where several pools would serve, the one of smallest GPUs."""
    trial = _Trial(cluster, sorted(pools.values(), key=lambda each: (memory_mib(each), each.pool)), nodes_max)
    before, cluster.peers.quiet = cluster.peers.quiet, True
    try:
        for each in waiting:
            for _ in range(each.count):
                if trial.taken >= PLACES_MAX or not trial.serve(each):
                    break
    finally:
        trial.undo()
        cluster.peers.quiet = before
    return trial.found


class _Trial:
    """The nodes that would be added, and what would be on them."""

    def __init__(self, cluster: ClusterState, pools: list[PoolDemand], nodes_max: int) -> None:
        self.found = Missing()
        self.taken = 0
        self._fleet = cluster
        self._nodes = cluster.without_nodes()
        self._pools = pools
        self._nodes_max = nodes_max
        self._empty: dict[str, ClusterState] = {}  # one new node of each pool, for the question whether it would serve
        self._pool_of: dict[str, str] = {}

    def serve(self, waiting: Waiting) -> bool:
        """Take a place for one of these on a new node. False when no pool has one for it."""
        askings = (waiting.asking, *waiting.instead)
        for asking in askings:
            place = find_free(self._nodes, asking)
            if place is not None:
                return self._take(waiting, asking, place)
        for asking in askings:
            if self._open_for(asking) and (place := find_free(self._nodes, asking)) is not None:
                return self._take(waiting, asking, place)
        return False

    def undo(self) -> None:
        """Forget the trial's pods, which terms of others matched meanwhile."""
        for number in range(1, self.taken + 1):
            self._fleet.peers.take(AllocationId(f"{_TRIED}{number}"))

    def _open_for(self, asking: PlaceRequest) -> bool:
        for demand in self._pools:
            number = self.found.nodes.get(demand.pool, 0)
            if number < self._nodes_max and demand.source in {"", asking.source} and self._serves(demand, asking):
                self.found.nodes[demand.pool] = number + 1
                self._pool_of[_add(self._nodes, demand, number)] = demand.pool
                return True
        return False

    def _serves(self, demand: PoolDemand, asking: PlaceRequest) -> bool:
        empty = self._empty.get(demand.pool)
        if empty is None:
            empty = self._empty[demand.pool] = self._fleet.without_nodes()
            _add(empty, demand, self._nodes_max)
        return find_free(empty, asking) is not None

    def _take(self, waiting: Waiting, asking: PlaceRequest, place: Place) -> bool:
        self.taken += 1
        self.found.pool_of.setdefault(waiting.key, self._pool_of[place.node])
        name = f"{_TRIED}{self.taken}"
        self._fleet.peers.put(AllocationId(name), place.node, peer_of_place_request(asking))
        booking = Booking(
            allocation=AllocationId(name),
            request=RequestId(name),
            request_revision=0,
            source=asking.source,
            owner=name,
            namespace=asking.namespace,
            name=name,
            node=place.node,
            devices=place.devices,
            room=asking.host.room,
        )
        self._nodes.book(booking)
        return True


def _add(cluster: ClusterState, demand: PoolDemand, number: int) -> str:
    snapshot, facts = new_node(demand, number)
    cluster.set_host(snapshot.node, facts)
    cluster.show(snapshot)
    return snapshot.node
