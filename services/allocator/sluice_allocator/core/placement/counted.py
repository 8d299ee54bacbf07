"""
Which nodes could hold how many devices of one shape: how several devices of one node are found without a scan.

A shape is counted from the first time somebody asks for several of it. Then each change on a node counts that node
anew, and no other.
"""

from collections.abc import Callable, Sequence

from sluice_allocator.core.placement.classes import NodeClass
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.shelf import Ladder

SHAPES_MAX = 32
"""At most so many shapes are counted in one class of nodes; whichever was asked for longest ago makes room."""
Count = Callable[[Node], int]


class Counted:
    """The nodes of one class by how many devices of one shape each could hold."""

    def __init__(self, count: Count, nodes: Sequence[Node]) -> None:
        """Count nothing yet."""
        self._count = count
        self._of: dict[int, int] = {}
        """The count of each node, by its number."""
        self.ladder = Ladder(nodes)

    def put(self, node: Node) -> None:
        """Count a node anew."""
        now, before = self._count(node), self._of.get(node.number)
        if now == before:
            self.ladder.rungs[now].look_again(node)
            return
        self.take(node)
        self._of[node.number] = now
        self.ladder.rung(now).add(node)

    def take(self, node: Node) -> None:
        """Count a node no longer."""
        before = self._of.pop(node.number, None)
        if before is not None:
            shelf = self.ladder.rungs[before]
            shelf.remove(node)
            if not shelf:
                self.ladder.drop(before)

    def move(self, node: Node, wealth_before: int) -> None:
        """The wealth of a node has changed."""
        count = self._of.get(node.number)
        if count is not None:
            self.ladder.rungs[count].move(node, wealth_before)


class CountedNodes:
    """All counts that are kept."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Count nothing yet. `nodes` are all nodes by number; the list is shared and grows."""
        self._nodes = nodes
        self._kept: dict[int, dict[str, Counted]] = {}

    def of(self, group: NodeClass, shape: str, count: Count) -> Counted:
        """The nodes of a class by how many of `shape` they hold. `count` must depend on the node and on it alone."""
        kept = self._kept.setdefault(group.number, {})
        found = kept.pop(shape, None)
        if found is None:
            if len(kept) >= SHAPES_MAX:
                del kept[next(iter(kept))]
            found = Counted(count, self._nodes)
            for node in group.nodes.values():
                found.put(node)
        kept[shape] = found
        return found

    def touch(self, node: Node, group: NodeClass) -> None:
        """Something on a node has changed."""
        if group.number in self._kept and node.number in group.nodes:
            for counted in self._kept[group.number].values():
                counted.put(node)

    def move(self, node: Node, group: NodeClass, wealth_before: int) -> None:
        """The wealth of a node has changed."""
        for counted in self._kept.get(group.number, {}).values():
            counted.move(node, wealth_before)

    def forget(self, node: Node, group: NodeClass) -> None:
        """A node is not of this class any more, or has nothing to give."""
        for counted in self._kept.get(group.number, {}).values():
            counted.take(node)
