"""Indexes nodes that have a device of one kind, to find the best one with room for a pod. The devices of a bucket are
alike in all that decides whether a claim fits. Its nodes stand in rows by CPU per free GPU, in blocks of 64 whose
bounds on CPU and memory skip them: never too low, raised as room grows, made exact after a search in vain."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sluice.contracts.messages import HostRoom
from sluice_allocator.core.placement.nodes.node import ANY_CPU_PER_GPU, UNBOUNDED, Node
from sluice_allocator.core.placement.spec.policies import NodeOrder

T = TypeVar("T")
Accept = Callable[[Node], T | None]


class GivenUp:
    """The result of an `accept` that ends the search: nothing found."""


_SHIFT = 6
_NODES_PER_BLOCK = 1 << _SHIFT


@dataclass(slots=True)
class _Block:
    """Up to 64 nodes with neighbouring numbers, as bits, and upper bounds of their room."""

    members: int = 0
    cpu_milli: int = -UNBOUNDED
    memory_mib: int = -UNBOUNDED
    fullest: int = -1
    emptiest: int = 1 << 30

    def raise_to(self, node: Node) -> None:
        # No `max`: this runs for every bucket of a node with every booking, and the calls would be most of its cost.
        if node.cpu_milli > self.cpu_milli:  # noqa: PLR1730
            self.cpu_milli = node.cpu_milli
        if node.memory_mib > self.memory_mib:  # noqa: PLR1730
            self.memory_mib = node.memory_mib
        if node.usage > self.fullest:  # noqa: PLR1730
            self.fullest = node.usage
        if node.usage < self.emptiest:  # noqa: PLR1730
            self.emptiest = node.usage

    def may_have(self, need: HostRoom) -> bool:
        return self.cpu_milli >= need.cpu_milli and self.memory_mib >= need.memory_mib


class _NodeRow:
    """Nodes with the same CPU per GPU, in the order of their numbers."""

    __slots__ = ("_blocks", "_nodes", "ids")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._blocks: dict[int, _Block] = {}
        self.ids: list[int] = []

    def __iter__(self) -> Iterator[Node]:
        for at in self.ids:
            yield from self._members(at, self._blocks[at])

    def add(self, node: Node) -> None:
        at = node.number >> _SHIFT
        block = self._blocks.get(at)
        if block is None:
            block = self._blocks[at] = _Block()
            bisect.insort(self.ids, at)
        block.members |= 1 << (node.number & (_NODES_PER_BLOCK - 1))
        block.raise_to(node)

    def remove(self, node: Node) -> None:
        at = node.number >> _SHIFT
        block = self._blocks.get(at)
        if block is None:
            return
        block.members &= ~(1 << (node.number & (_NODES_PER_BLOCK - 1)))
        if not block.members:
            del self._blocks[at]
            del self.ids[bisect.bisect_left(self.ids, at)]

    def look_again(self, node: Node) -> None:
        self._blocks[node.number >> _SHIFT].raise_to(node)

    def first(self, need: HostRoom, accept: Accept[T]) -> tuple[Node, T] | None:
        nodes, cpu_milli, memory_mib = self._nodes, need.cpu_milli, need.memory_mib
        for at in self.ids:
            block = self._blocks[at]
            if block.cpu_milli < cpu_milli or block.memory_mib < memory_mib:
                continue
            members, before = block.members, (at << _SHIFT) - 1
            while members:  # as `_members`, without a generator: this is most of a search
                lowest = members & -members
                members ^= lowest
                node = nodes[before + lowest.bit_length()]
                found = accept(node) if node.has_room(need) else None
                if found is not None:
                    return node, found
            self._tighten(at, block)
        return None

    def by_usage(self, need: HostRoom, accept: Accept[T], sign: int) -> tuple[Node, T] | None:
        roomy = ((at, block) for at, block in self._blocks.items() if block.may_have(need))
        bounds = [(-block.fullest if sign < 0 else block.emptiest, at) for at, block in roomy]
        best: tuple[int, int] | None = None
        answer: tuple[Node, T] | None = None
        for bound, at in sorted(bounds):
            if best is not None and (bound, at << _SHIFT) > best:
                break
            block = self._blocks[at]
            self._tighten(at, block)
            fitting = (node for node in self._members(at, block) if node.has_room(need))
            for key in sorted((sign * node.usage, node.number) for node in fitting):
                if best is not None and key > best:
                    break
                node = self._nodes[key[1]]
                found = accept(node)
                if found is not None:
                    best, answer = key, (node, found)
                    break
        return answer

    def _members(self, at: int, block: _Block) -> Iterator[Node]:
        first, members = (at << _SHIFT) - 1, block.members
        while members:
            lowest = members & -members
            members ^= lowest
            yield self._nodes[first + lowest.bit_length()]

    def _tighten(self, at: int, block: _Block) -> None:
        members = list(self._members(at, block))
        block.cpu_milli = max(node.cpu_milli if node.pods > 0 else -UNBOUNDED for node in members)
        block.memory_mib = max(node.memory_mib for node in members)
        block.fullest = max(node.usage for node in members)
        block.emptiest = min(node.usage for node in members)


class Bucket:
    """Nodes with a device of one kind."""

    __slots__ = ("_nodes", "_rows", "devices")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._rows: dict[int, _NodeRow] = {}
        self.devices = 0  # the number of devices on it, where each is added by itself

    def __bool__(self) -> bool:
        return bool(self._rows)

    def put(self, node: Node) -> None:
        self.devices += 1
        there = node.buckets.get(self, 0)
        node.buckets[self] = there + 1
        if not there:
            self.add(node)

    def take(self, node: Node) -> None:
        self.devices -= 1
        left = node.buckets[self] - 1
        if left:
            node.buckets[self] = left
        else:
            del node.buckets[self]
            self.remove(node)

    def add(self, node: Node) -> None:
        if node.cpu_per_gpu not in self._rows:
            self._rows[node.cpu_per_gpu] = _NodeRow(self._nodes)
        self._rows[node.cpu_per_gpu].add(node)

    def remove(self, node: Node) -> None:
        self.move(node, node.cpu_per_gpu, stays=False)

    def move(self, node: Node, cpu_per_gpu_before: int, *, stays: bool = True) -> None:
        row = self._rows.get(cpu_per_gpu_before)
        if row is not None:
            row.remove(node)
            if not row.ids:
                del self._rows[cpu_per_gpu_before]
        if stays:
            self.add(node)

    def look_again(self, node: Node) -> None:
        self._rows[node.cpu_per_gpu].look_again(node)

    def some(self, most: int) -> list[Node]:
        return list(islice((node for row in self._rows.values() for node in row), most))

    def find(
        self, need: HostRoom, order: NodeOrder, accept: Accept[T], cpu_per_gpu: int = ANY_CPU_PER_GPU
    ) -> tuple[Node, T] | None:
        """The best node in this order that has room and that `accept` turns into a result."""
        rows = self._rows
        if len(rows) == 1 and order in {"any", "first"}:
            return next(iter(rows.values())).first(need, accept)
        if order == "any" and cpu_per_gpu != ANY_CPU_PER_GPU:
            keys = sorted(rows)
            at = bisect.bisect_left(keys, cpu_per_gpu)
            while keys:  # the nearest first; of two the poorer
                at -= at == len(keys) or (at > 0 and cpu_per_gpu - keys[at - 1] <= keys[at] - cpu_per_gpu)
                found = rows[keys.pop(at)].first(need, accept)
                if found is not None:
                    return found
            return None
        if order in {"any", "first"}:
            every = [row.first(need, accept) for row in rows.values()]
            return min((each for each in every if each is not None), key=lambda each: each[0].number, default=None)
        sign = -1 if order == "fullest" else 1
        every = [row.by_usage(need, accept, sign) for row in rows.values()]
        answers = (each for each in every if each is not None)
        return min(answers, key=lambda each: (sign * each[0].usage, each[0].number), default=None)


class SortedBuckets:
    """Buckets by number; searches take those from some number on, lowest first."""

    __slots__ = ("_nodes", "by_number", "order")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.by_number: dict[int, Bucket] = {}
        self.order: list[int] = []  # the numbers of its buckets, sorted

    def __bool__(self) -> bool:
        return bool(self.order)

    def bucket_number(self, number: int) -> Bucket:
        bucket = self.by_number.get(number)
        if bucket is None:
            bucket = self.by_number[number] = Bucket(self._nodes)
            bisect.insort(self.order, number)
        return bucket

    def drop_if_empty(self, number: int) -> None:
        if not self.by_number[number]:
            del self.by_number[number]
            del self.order[bisect.bisect_left(self.order, number)]

    def at_least(self, number: int) -> Iterator[int]:
        """The numbers from this one on. Do not add buckets while iterating."""
        return (self.order[at] for at in range(bisect.bisect_left(self.order, number), len(self.order)))
