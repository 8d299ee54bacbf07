"""Counts how many devices of one shape each node could hold, so that several devices are found without a scan. A shape
is counted from its first multi-device request on. Each change on a node then recounts that node only."""

from collections.abc import Callable, Sequence

from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.bucket import SortedBuckets
from sluice_allocator.core.placement.nodes.node import Node

SHAPES_MAX = 32  # most shapes counted per class of nodes; the least recently used one makes room
Count = Callable[[Node], int]


class DeviceCounts:
    """The nodes of one class by how many devices of one shape each could hold."""

    def __init__(self, count: Count, nodes: Sequence[Node]) -> None:
        self._count = count
        self._of: dict[int, int] = {}  # each node's count, by its number
        self.sorted_buckets = SortedBuckets(nodes)

    def put(self, node: Node) -> None:
        now, before = self._count(node), self._of.get(node.number)
        if now == before:
            self.sorted_buckets.by_number[now].look_again(node)
            return
        self.take(node)
        self._of[node.number] = now
        self.sorted_buckets.bucket_number(now).add(node)

    def take(self, node: Node) -> None:
        before = self._of.pop(node.number, None)
        if before is not None:
            bucket = self.sorted_buckets.by_number[before]
            bucket.remove(node)
            if not bucket:
                self.sorted_buckets.drop(before)

    def move(self, node: Node, cpu_per_gpu_before: int) -> None:
        count = self._of.get(node.number)
        if count is not None:
            self.sorted_buckets.by_number[count].move(node, cpu_per_gpu_before)


class DeviceCountCache:
    """All kept counts."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start with no counts. `nodes` are all nodes by number; the list is shared and grows."""
        self._nodes = nodes
        self._kept: dict[int, dict[str, DeviceCounts]] = {}

    def of(self, group: NodeClass, shape: str, count: Count) -> DeviceCounts:
        """A class's nodes by how many of `shape` they hold. `count` must depend on the node alone."""
        kept = self._kept.setdefault(group.number, {})
        found = kept.pop(shape, None)
        if found is None:
            if len(kept) >= SHAPES_MAX:
                del kept[next(iter(kept))]
            found = DeviceCounts(count, self._nodes)
            for node in group.nodes.values():
                found.put(node)
        kept[shape] = found
        return found

    def touch(self, node: Node, group: NodeClass) -> None:
        if group.number in self._kept and node.number in group.nodes:
            for counted in self._kept[group.number].values():
                counted.put(node)

    def move(self, node: Node, group: NodeClass, cpu_per_gpu_before: int) -> None:
        for counted in self._kept.get(group.number, {}).values():
            counted.move(node, cpu_per_gpu_before)

    def forget(self, node: Node, group: NodeClass) -> None:
        for counted in self._kept.get(group.number, {}).values():
            counted.take(node)
