"""Indexes the tenants that may be evicted (the caller decides), and orders their GPUs by the cost of room on them
(`clearing_cost`), so that the cheapest for a profile is found at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import HostRoom
from sluice_allocator.core.key_index import drop, put
from sluice_allocator.core.placement.index.clearing_cost import (
    ClearingCosts,
    CostBucket,
    CostIndex,
    EvictionCost,
    GpuKey,
    Occupancy,
    Occupant,
    VictimRank,
)
from sluice_allocator.core.placement.index.node_class import DeviceCountCache, NodeClass, SharedDevicesKey
from sluice_allocator.core.placement.nodes.gpu import Gpu, SharedDeviceOnGpu, Span
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.sorted_keys import SortedKeys

CLEARINGS_REMEMBERED = 20_000  # most different occupancies remembered, a few kB each; older ones are computed again
NO_LEVEL = 1 << 62  # above every priority


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A tenant that may be evicted for a request of higher priority than its own."""

    allocation: AllocationId
    priority: int
    namespace: str
    memory_mib: int  # the memory of the whole pod, in MiB
    room: HostRoom  # what its node gains when it is gone
    guarded: bool = False  # its namespace has a guarantee: whether it may go depends on the namespace's other tenants

    @property
    def who(self) -> VictimRank:
        return self.priority, self.memory_mib


@dataclass(slots=True, eq=False)
class ClearedGpu:
    """One GPU with tenants that may go: the cost of room there, and the tenants by number."""

    gpu_key: GpuKey
    gpu: Gpu
    node: Node
    clearing: ClearingCosts
    who: tuple[Victim, ...]
    cost_index: CostIndex
    cost_bucket: CostBucket


HomePosition = tuple[int, int, int, GpuUuid, str]
"""The memory in MiB that a home would have left; then its position: number of the node, index there, GPU, span."""
HomeLevels = tuple[tuple[int, SharedDevicesKey], int]
"""Number of the class of nodes and the home's key; the priority up to which all tenants would go."""


class VictimIndex:
    """All tenants that may go, by position."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.known: dict[AllocationId, Victim] = {}
        self.counted = DeviceCountCache(nodes)  # nodes by the priority up to which tenants go for so many devices
        self._nodes = nodes
        self._on: dict[NodeName, dict[AllocationId, None]] = {}
        self._of: dict[str, dict[AllocationId, None]] = {}  # by namespace
        self._cost_indexes: dict[tuple[int, str, bool], CostIndex] = {}
        self._cleared: dict[tuple[GpuUuid, bool], ClearedGpu] = {}
        self._clearings: dict[Occupancy, ClearingCosts] = {}
        self._homes: dict[tuple[int, SharedDevicesKey], dict[int, SortedKeys[HomePosition]]] = {}
        self._home_at: dict[HomePosition, SharedDeviceOnGpu] = {}
        self._home_positions: dict[GpuUuid, list[tuple[HomeLevels, HomePosition]]] = {}

    def __bool__(self) -> bool:
        return bool(self.known)

    def offer(self, victim: Victim, node: NodeName) -> None:
        """A tenant of a node may go. Call `look_at` for its GPUs afterwards."""
        self.known[victim.allocation] = victim
        put(self._on, node, victim.allocation)
        put(self._of, victim.namespace, victim.allocation)

    def withdraw(self, allocation: AllocationId, node: NodeName) -> None:
        """A tenant may not go any more, or has gone. Call `look_at` for its GPUs afterwards."""
        namespace = self.known.pop(allocation).namespace
        drop(self._on, node, allocation)
        drop(self._of, namespace, allocation)

    def on(self, node: Node, below: int) -> list[Victim]:
        there = (self.known[allocation] for allocation in self._on.get(node.name, ()))
        return [victim for victim in there if victim.priority < below]

    def of(self, namespace: str) -> Iterator[Victim]:
        """Tenants of a namespace that may go, those eligible for longest first."""
        return (self.known[allocation] for allocation in self._of.get(namespace, ()))

    def nodes(self) -> Iterator[NodeName]:
        return iter(self._on)

    def look_at(self, node: Node, group: NodeClass, gpu: Gpu) -> None:
        self.forget(gpu)
        allowed = {key[0]: victim for key in gpu.spans if (victim := self.known.get(key[0])) is not None}
        if not allowed:
            return
        self._file(node, group, gpu, allowed.values(), strict=False)
        if any(victim.guarded for victim in allowed.values()):
            self._file(node, group, gpu, (each for each in allowed.values() if not each.guarded), strict=True)
        for at_home in gpu.homes.values():
            if gpu.stands(at_home.key) and not at_home.home.mixed:
                self._file_home(group, at_home, _key_of(node, gpu))

    def forget(self, gpu: Gpu) -> None:
        uuid = gpu.report.uuid
        for strict in (False, True):
            cleared = self._cleared.pop((uuid, strict), None)
            if cleared is not None:
                cleared.cost_index.take(cleared.cost_bucket, cleared.gpu_key)
        for (key, level), position in self._home_positions.pop(uuid, ()):
            levels = self._homes[key]
            levels[level].remove(position)
            self._home_at.pop(position, None)
            if not levels[level]:
                drop(self._homes, key, level)

    def cheapest(
        self, group: NodeClass, kind: str, profile: str, *, strict: bool
    ) -> Iterator[tuple[EvictionCost, CostBucket]]:
        """Buckets of one kind of GPU, in order of cost for a profile. `strict`: tenants of guarded namespaces stay."""
        cost_index = self._cost_indexes.get((group.number, kind, strict))
        order = cost_index.order(profile) if cost_index is not None else ()
        return ((cost, cost_bucket) for cost, _, cost_bucket in order)

    def cleared(self, uuid: GpuUuid, *, strict: bool) -> ClearedGpu:
        return self._cleared[uuid, strict]

    def find(self, uuid: GpuUuid) -> ClearedGpu | None:
        """The cost of room on any GPU; None where no tenant may go."""
        return self._cleared.get((uuid, False))

    def homes(
        self, group: NodeClass, key: SharedDevicesKey, least_mib: int, below: int
    ) -> Iterator[tuple[int, SharedDeviceOnGpu]]:
        """Homes with so much memory left when all tenants up to a priority (the number) below this have gone."""
        levels = self._homes.get((group.number, key), {})
        for level in sorted(each for each in levels if each < below):
            gpu_key = levels[level].after((least_mib - 1, NO_LEVEL, 0, GpuUuid(""), ""))
            while gpu_key is not None:
                yield level, self._home_at[gpu_key]
                gpu_key = levels[level].after(gpu_key)

    def count_on(self, gpu: Gpu, profile: str, level: int) -> int:
        """How many devices of a profile fit on a GPU when every tenant there up to a priority has gone."""
        cleared = self.find(gpu.report.uuid)
        if cleared is not None:
            return cleared.clearing.count_without(level, profile)
        return gpu.count(profile)

    def guess(self, profiles: Iterable[tuple[Gpu, str]], wanted: int) -> int:
        """How many victims so many devices on GPUs take, if each device costs what the first on its GPU does."""
        costs: list[int] = []
        for gpu, profile in profiles:
            cleared = self.find(gpu.report.uuid)
            way = cleared.clearing.ways[profile] if cleared is not None else None
            if way is not None:
                costs.append(way.cost[1])
            elif cleared is None and self.count_on(gpu, profile, 0):
                costs.append(0)
        return sum(sorted(costs)[:wanted])

    def _file(self, node: Node, group: NodeClass, gpu: Gpu, allowed: Iterable[Victim], *, strict: bool) -> None:
        who = tuple(sorted(allowed, key=lambda each: (each.priority, each.memory_mib, each.allocation)))
        numbers = {victim.allocation: number for number, victim in enumerate(who)}
        clearing = self._clearing(gpu, _tenancy(gpu, who, numbers))
        cost_key, gpu_key = (group.number, gpu.kind, strict), _key_of(node, gpu)
        cost_index = self._cost_indexes.get(cost_key)
        if cost_index is None:
            cost_index = self._cost_indexes[cost_key] = CostIndex(tuple(clearing.ways))
        cost_bucket = cost_index.put(clearing.costs, gpu_key)
        self._cleared[gpu.report.uuid, strict] = ClearedGpu(gpu_key, gpu, node, clearing, who, cost_index, cost_bucket)

    def _clearing(self, gpu: Gpu, occupancy: Occupancy) -> ClearingCosts:
        clearing = self._clearings.get(occupancy)
        if clearing is None:
            if len(self._clearings) >= CLEARINGS_REMEMBERED:
                self._clearings.clear()
            clearing = self._clearings[occupancy] = ClearingCosts(occupancy, gpu.table, gpu.mig)
        return clearing

    def _file_home(self, group: NodeClass, at_home: SharedDeviceOnGpu, gpu_key: GpuKey) -> None:
        home = at_home.home
        tenants = ((self.known.get(key[0]), share.memory_mib) for key, share in home.shares.items())
        going = sorted((victim.priority, memory_mib) for victim, memory_mib in tenants if victim is not None)
        key = (group.number, (home.domain, home.mode, at_home.gpu.kind, at_home.key[0]))
        left = home.free_memory_mib
        for number, (priority, memory_mib) in enumerate(going):
            left += memory_mib
            if number + 1 < len(going) and going[number + 1][0] == priority:
                continue
            position = (left, *gpu_key, f"{at_home.key[0]} {at_home.key[1]}")
            self._homes.setdefault(key, {}).setdefault(priority, SortedKeys()).add(position)
            self._home_at[position] = at_home
            self._home_positions.setdefault(at_home.gpu.report.uuid, []).append(((key, priority), position))


def _key_of(node: Node, gpu: Gpu) -> GpuKey:
    return node.number, gpu.report.index, gpu.report.uuid


def _tenancy(gpu: Gpu, who: Sequence[Victim], numbers: dict[AllocationId, int]) -> Occupancy:
    spans: dict[Span, list[int | None]] = {}
    occupants: list[Occupant] = []
    for (allocation, _), grant in gpu.spans.items():
        number = numbers.get(allocation)
        span = (grant.profile, grant.start, grant.size)
        if grant.share is not None:
            spans.setdefault(span, []).append(number)
        else:
            occupants.append(Occupant(span, () if number is None else (number,)))
    for span, tenants in spans.items():
        numbered = [number for number in tenants if number is not None]
        stays = len(numbered) < len(tenants)
        occupants.append(Occupant(span, () if stays else tuple(sorted(dict.fromkeys(numbered)))))
    occupants.sort(key=lambda each: (each.span[1], each.span[2], each.span[0] or "", each.who))
    return Occupancy(gpu.kind, gpu.blocked, gpu.foreign, tuple(occupants), tuple(victim.who for victim in who))
