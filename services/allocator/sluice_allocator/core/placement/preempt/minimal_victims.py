"""The fewest tenants of one node to evict so that all devices of a request fit, tried on a copy of the node: their
number is found by halving, as more fits the more have gone; then every tenant with room stays."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from itertools import product

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import DeviceGrant, HostRoom, Share
from sluice_allocator.core.placement.index.clearing_cost import EvictionCost, eviction_cost_of, least_of
from sluice_allocator.core.placement.index.victim_index import Victim
from sluice_allocator.core.placement.nodes.gpu import Gpu, SharedDeviceOnGpu, overlap
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.placement.search.context import SearchContext
from sluice_allocator.core.placement.search.node_fit import fit_on_node

FILLS_MAX = 96  # most fills of a node before it is given up; a node full of instances takes fewer than 20

TRIED_ELSEWHERE_MAX = 4
"""So many victims are also tried at other places of the node; beyond, only that this place needs them."""

Devices = tuple[DeviceGrant, ...]


@dataclass(slots=True)
class NodeVictims:
    """One node, and its tenants that may go."""

    context: SearchContext
    node: Node
    going: Sequence[Victim]
    _fills: int = field(default=FILLS_MAX)

    def least(self, *, guarded: bool) -> tuple[Devices, list[Victim]] | None:
        """Devices and victims; `guarded`: also victims of namespaces with a guarantee."""
        order = [each for each in self.going if guarded or not each.guarded]
        if not guarded and len(order) == len(self.going):
            return None  # the same as with them
        ranks = self._ranks()
        order.sort(key=lambda each: (each.priority, *ranks.get(each, _LAST), *each.who, each.allocation))
        low, high = 0, len(order)  # it fits with `high` gone, and does not with fewer than `low`
        middle = min(high, sum(claim.gpus for claim in self.context.request.claims))  # often each device takes one
        devices = self._without(order[:middle])
        if devices is not None:
            high = middle
        else:
            low = middle + 1
            devices = self._without(order) if low <= high else None
            if devices is None:
                return None
        while low < high:
            middle = (low + high) // 2
            found = self._without(order[:middle])
            if found is not None:
                high, devices = middle, found
            else:
                low = middle + 1
        return self._minimal(devices, order[:high])

    def _without(self, gone: Sequence[Victim]) -> Devices | None:
        self._fills -= 1
        node = emptied(self.node, {each.allocation for each in gone})
        return fit_on_node(self.context, node) if node.has_room(self.context.need) else None

    def _minimal(self, devices: Devices, gone: list[Victim]) -> tuple[Devices, list[Victim]] | None:
        """Let every tenant stay that has room, the most important first. None when the fills run out."""
        has_to_go: dict[Victim, None] = {}
        while True:
            there = self._where(devices, gone)
            doubtful = [each for each in reversed(gone) if each not in there and each not in has_to_go]
            found, stayed = self._keep(devices, gone, doubtful)
            if self._fills <= 0:
                return None
            has_to_go |= {each: None for each in doubtful if each not in stayed}
            gone = [each for each in gone if each not in stayed]
            if found != devices:
                devices = found  # elsewhere on the node: tenants of the former devices' places may stay
                continue
            in_doubt = [each for each in gone if each not in has_to_go]
            if not in_doubt or len(gone) > TRIED_ELSEWHERE_MAX:
                return devices, gone
            devices, stayed = self._keep(devices, gone, in_doubt)
            has_to_go |= {each: None for each in in_doubt if each not in stayed}
            gone = [each for each in gone if each not in stayed]

    def _keep(
        self, devices: Devices, gone: Sequence[Victim], doubtful: list[Victim]
    ) -> tuple[Devices, dict[Victim, None]]:
        stayed: dict[Victim, None] = {}
        parts = [doubtful] if doubtful else []
        while parts and self._fills > 0:
            part = parts.pop(0)
            found = self._without([each for each in gone if each not in stayed and each not in part])
            if found is not None:
                devices = found
                stayed |= dict.fromkeys(part)
            elif len(part) > 1:
                half = len(part) // 2
                parts[:0] = [part[:half], part[half:]]
        return devices, stayed

    def _where(self, devices: Devices, gone: Sequence[Victim]) -> dict[Victim, None]:
        """The tenants in the place of these devices: this place needs them to go."""
        booked = {victim: self.context.cluster.booking(victim.allocation) for victim in gone}
        exclusive = [device for device in devices if device.share is None]
        there = {victim: booking.devices for victim, booking in booked.items() if booking is not None}
        taken = {victim: product(its, exclusive) for victim, its in there.items()}
        return {v: None for v, pairs in taken.items() if any(a.gpu == b.gpu and overlap(a, b) for a, b in pairs)}

    def _ranks(self) -> dict[Victim, tuple[int, ...]]:
        """Per tenant, how cheap its cheapest GPU is for the first claim, so that GPUs are emptied one by one."""
        victims, spec = self.context.cluster.index.victims, self.context.specs[0]
        ranks: dict[Victim, tuple[int, ...]] = {}
        for gpu in self.node.gpus:
            profile = spec.profile_on(gpu)
            cleared = victims.find(gpu.report.uuid)
            if cleared is None:
                continue
            way = cleared.clearing.ways.get(profile) if profile is not None else None
            cost: EvictionCost = way.cost if way is not None else _NEVER
            for victim in cleared.who:
                rank = (*cost[1:], gpu.report.index)
                ranks[victim] = min(ranks.get(victim, rank), rank)
        return ranks


_NEVER: EvictionCost = (0, 1 << 30, 0)
_LAST = (1 << 31, 0, 0)  # the rank of tenants on no usable GPU


def leave_node(node: Node, goes: Sequence[Victim], others: Sequence[Victim], need: HostRoom) -> list[Victim] | None:
    """All victims, including those of the others that have to go before the pod has room on the node."""
    order = sorted(others, key=lambda each: (*each.who, each.allocation))
    more = least_of(order, lambda some: node.would_have_room(need, [each.room for each in (*goes, *some)]))
    return [*goes, *more] if more is not None else None


def leave_home(home: SharedDevice, share: Share, going: Sequence[Victim]) -> list[Victim] | None:
    """The victims so that a share fits in a home: largest memory first, or smallest."""
    memory_mib = {victim.allocation: 0 for victim in going}
    for (allocation, _), there in home.shares.items():
        if allocation in memory_mib:
            memory_mib[allocation] += there.memory_mib

    def fits(gone: Sequence[Victim]) -> bool:
        return home.without({each.allocation for each in gone}).why_not(share) is None

    best: list[Victim] | None = None
    for sign in (-1, 1):
        order = sorted(going, key=lambda each: (each.priority, sign * memory_mib[each.allocation], each.allocation))
        found = least_of(order, fits)
        if found is not None and (best is None or _cost(found) < _cost(best)):
            best = found
    return best


def _cost(victims: Sequence[Victim]) -> tuple[int, int, int]:
    return eviction_cost_of(victim.who for victim in victims)


def emptied(node: Node, gone: AbstractSet[AllocationId]) -> Node:
    taken = {allocation: room for allocation, room in node.taken.items() if allocation not in gone}
    without = copy(node)
    without.taken, without.buckets = taken, {}
    without.gpus = tuple(_without(gpu, gone) for gpu in node.gpus)
    without.learn(node.facts)
    return without


def _without(gpu: Gpu, gone: AbstractSet[AllocationId]) -> Gpu:
    if not any(allocation in gone for allocation, _ in gpu.spans):
        return gpu
    spans = {key: grant for key, grant in gpu.spans.items() if key[0] not in gone}
    without = copy(gpu)
    without.spans, without.homes, without.bucket = spans, {}, None
    for span, at_home in gpu.homes.items():
        home = at_home.home.without(gone)
        if home.shares:
            without.homes[span] = SharedDeviceOnGpu(without, span, home)
    without.recompute()
    return without
