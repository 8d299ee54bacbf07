"""
Copies a node without some of its tenants, to be searched like any node and thrown away.

GPUs without a leaving tenant are shared with the fleet, since a search changes none. The cost is that of the changed
GPUs.
"""

from collections.abc import Set as AbstractSet
from copy import copy

from sluice.contracts.ids import AllocationId
from sluice_allocator.core.placement.gpus import Gpu, HomeOnGpu
from sluice_allocator.core.placement.hosts import Node


def emptied(node: Node, gone: AbstractSet[AllocationId]) -> Node:
    """The node without the tenants of these allocations."""
    taken = {allocation: room for allocation, room in node.taken.items() if allocation not in gone}
    without = copy(node)
    without.taken, without.shelves = taken, {}
    without.gpus = tuple(_without(gpu, gone) for gpu in node.gpus)
    without.learn(node.facts)
    return without


def _without(gpu: Gpu, gone: AbstractSet[AllocationId]) -> Gpu:
    if not any(allocation in gone for allocation, _ in gpu.spans):
        return gpu
    spans = {key: grant for key, grant in gpu.spans.items() if key[0] not in gone}
    without = copy(gpu)
    without.spans, without.homes, without.shelf = spans, {}, None
    for span, at_home in gpu.homes.items():
        home = at_home.home.without(gone)
        if not home.empty:
            without.homes[span] = HomeOnGpu(without, span, home)
    without.recompute()
    return without
