"""Count what nodes have when empty, by shape: GPUs of each kind, and the most of every other resource. Updated as nodes
come and go, so that the allocator separates "no node could ever" from "not now" without visiting the nodes. A node's
total for pods is `HostFacts.allocatable`; a node that does not report it proves nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.messages import HostRoom
from sluice_allocator.core.key_index import count
from sluice_allocator.core.placement.nodes.gpu import Gpu

ShapeKey = tuple[tuple[str, int, int], ...]  # GPUs of each kind on each NUMA node; -1 where those are not known


@dataclass(slots=True)
class Maximum:
    """The largest of amounts that are added and removed. Only removing the largest looks at the others."""

    most: int = 0
    _times: dict[int, int] = field(default_factory=dict)

    def count(self, amount: int, by: int) -> None:
        """Add a node's amount (`by` 1), or remove it (-1)."""
        if count(self._times, amount, by):
            self.most = max(self.most, amount)
        elif amount == self.most:
            self.most = max(self._times, default=0)

    def __bool__(self) -> bool:
        return bool(self._times)


@dataclass(slots=True, eq=False)
class NodeShape:
    """The nodes of one class with the same GPUs. The most of each amount is the most of any node, not all of one."""

    gpus: tuple[tuple[Gpu, int], ...]  # one GPU of each kind and NUMA node, and how many each node has
    nodes: int = 0
    unreported: int = 0  # nodes that do not report their allocatable
    cpu_milli: Maximum = field(default_factory=Maximum)
    memory_mib: Maximum = field(default_factory=Maximum)
    resources: dict[str, Maximum] = field(default_factory=dict)

    def count(self, room: HostRoom | None, by: int) -> None:
        """Add a node with this allocatable (`by` 1), or remove it (-1)."""
        self.nodes += by
        if room is None:
            self.unreported += by
            return
        self.cpu_milli.count(room.cpu_milli, by)
        self.memory_mib.count(room.memory_mib, by)
        for name, amount in room.resources.items():
            most = self.resources.setdefault(name, Maximum())
            most.count(amount, by)
            if not most:
                del self.resources[name]

    def most_of(self, resource: str) -> int:
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
