"""
Count what nodes have when empty, by shape: GPUs of each kind, and the most of every other resource.

Updated as nodes come and go, so that the allocator separates "no node could ever" from "not now" without visiting the
nodes. A node's total for pods is `HostFacts.allocatable`; a node that does not report it proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.messages import HostRoom
from sluice_allocator.core.placement.gpus import Gpu

ShapeKey = tuple[tuple[str, int, int], ...]
"""How many GPUs of each kind a node has on each of its NUMA nodes; -1 where those are not known."""


@dataclass(slots=True)
class Most:
    """The largest of amounts that are added and removed. Only removing the largest looks at the others."""

    most: int = 0
    _times: dict[int, int] = field(default_factory=dict)

    def put(self, amount: int) -> None:
        """Add a node's amount."""
        self._times[amount] = self._times.get(amount, 0) + 1
        self.most = max(self.most, amount)

    def take(self, amount: int) -> None:
        """Remove a node's amount."""
        left = self._times[amount] - 1
        if left:
            self._times[amount] = left
            return
        del self._times[amount]
        if amount == self.most:
            self.most = max(self._times, default=0)

    def __bool__(self) -> bool:
        """Whether any node has some."""
        return bool(self._times)


@dataclass(slots=True, eq=False)
class NodeShape:
    """The nodes of one class with the same GPUs. The most of each amount is the most of any node, not all of one."""

    gpus: tuple[tuple[Gpu, int], ...]
    """One GPU of each kind and NUMA node, and how many of those each node has, usable or not."""
    nodes: int = 0
    untold: int = 0
    """Nodes that do not report their allocatable."""
    cpu_milli: Most = field(default_factory=Most)
    memory_mib: Most = field(default_factory=Most)
    resources: dict[str, Most] = field(default_factory=dict)

    def put(self, room: HostRoom | None) -> None:
        """Add a node with this allocatable."""
        self.nodes += 1
        if room is None:
            self.untold += 1
            return
        self.cpu_milli.put(room.cpu_milli)
        self.memory_mib.put(room.memory_mib)
        for name, count in room.resources.items():
            self.resources.setdefault(name, Most()).put(count)

    def take(self, room: HostRoom | None) -> None:
        """Remove a node."""
        self.nodes -= 1
        if room is None:
            self.untold -= 1
            return
        self.cpu_milli.take(room.cpu_milli)
        self.memory_mib.take(room.memory_mib)
        for name, count in room.resources.items():
            self.resources[name].take(count)
            if not self.resources[name]:
                del self.resources[name]

    def most_of(self, resource: str) -> int:
        """The most that any such node has of a countable resource."""
        return self.resources[resource].most if resource in self.resources else 0


def shape_of_gpus(gpus: Sequence[Gpu]) -> tuple[ShapeKey, tuple[tuple[Gpu, int], ...]]:
    """The shape that nodes with these GPUs have, and one of each kind with its count."""
    alike: dict[tuple[str, int], list[Gpu]] = {}
    for gpu in gpus:
        numa = gpu.report.numa_node
        alike.setdefault((gpu.kind, -1 if numa is None else numa), []).append(gpu)
    ordered = sorted(alike)
    key = tuple((kind, numa, len(alike[kind, numa])) for kind, numa in ordered)
    return key, tuple((alike[each][0], len(alike[each])) for each in ordered)
