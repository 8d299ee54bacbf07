"""
Picks the fewest tenants to evict so that a pod's CPU and memory fit on a node, or one more share in a home.

For amounts that add up; `clearing` handles positions on a GPU.
"""

from collections.abc import Callable, Sequence

from sluice.contracts.messages import HostRoom, Share
from sluice_allocator.core.placement.clearing import loss_of
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.hosts import Node
from sluice_allocator.core.placement.victims import Victim


def least_of(order: Sequence[Victim], fits: Callable[[Sequence[Victim]], bool]) -> list[Victim] | None:
    """
    The shortest prefix of this order that makes room, minus those that can stay after all, the last ones first.

    None where it does not fit even without all of them. No victim in the answer could stay.
    """
    goes: list[Victim] = []
    if fits(goes):
        return goes
    for each in order:
        goes.append(each)
        if fits(goes):
            break
    else:
        return None
    for each in reversed(goes[:-1]):
        less = [other for other in goes if other is not each]
        if fits(less):
            goes = less
    return goes


def leave_node(node: Node, goes: Sequence[Victim], others: Sequence[Victim], need: HostRoom) -> list[Victim] | None:
    """All victims, including those of the others that have to go before the pod has room on the node."""
    if has_room(node, goes, need):
        return list(goes)
    order = sorted(others, key=lambda each: (*each.who, each.allocation))
    more = least_of(order, lambda some: has_room(node, [*goes, *some], need))
    return [*goes, *more] if more is not None else None


def has_room(node: Node, goes: Sequence[Victim], need: HostRoom) -> bool:
    """Whether a node has room for one more pod, GPUs aside, when some have gone."""
    if node.cpu_milli + sum(each.room.cpu_milli for each in goes) < need.cpu_milli:
        return False
    if node.memory_mib + sum(each.room.memory_mib for each in goes) < need.memory_mib:
        return False
    if node.pods + len(goes) < 1:
        return False
    free = node.resources
    return free is None or all(
        free.get(name, 0) + sum(each.room.resources.get(name, 0) for each in goes) >= count
        for name, count in need.resources.items()
    )


def leave_home(home: Home, share: Share, going: Sequence[Victim]) -> list[Victim] | None:
    """The victims so that a share fits in a home: largest memory first, or smallest."""
    memory_mib = {victim.allocation: 0 for victim in going}
    for (allocation, _), there in home.shares.items():
        if allocation in memory_mib:
            memory_mib[allocation] += there.memory_mib
    best: list[Victim] | None = None
    for sign in (-1, 1):
        order = sorted(going, key=lambda each: (each.priority, sign * memory_mib[each.allocation], each.allocation))
        found = least_of(order, lambda some: _fits(home, share, some))
        if found is not None and (best is None or _loss(found) < _loss(best)):
            best = found
    return best


def _loss(victims: Sequence[Victim]) -> tuple[int, int, int]:
    return loss_of(victim.who for victim in victims)


def _fits(home: Home, share: Share, gone: Sequence[Victim]) -> bool:
    return home.without({each.allocation for each in gone}).why_not(share) is None
