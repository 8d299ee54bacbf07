"""The cost of making room on a GPU: for each profile the place whose tenants cost least to evict, and those tenants.
Depends only on which tenants may go, at which priority, and what each would lose: computed once for GPUs with equal
tenants. `CostIndex` orders the GPUs of one kind by it; GPUs with the same costs for all profiles share a bucket."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from sluice.contracts.ids import GpuUuid
from sluice.mig.layout import Instance
from sluice.mig.model import Placement, Profile
from sluice.mig.transition_table import State, TransitionTable
from sluice_allocator.core.placement.nodes.gpu import WHOLE_GPU, Span
from sluice_allocator.core.sorted_keys import SortedKeys

EvictionCost = tuple[int, int, int]
"""The cost when some pods go: the highest priority among them, their number, their memory in MiB. Smaller is better."""
NO_COST: EvictionCost = (-(1 << 62), 0, 0)  # No eviction. Below every cost.
VictimRank = tuple[int, int]  # a tenant that may go: its priority, and the memory that its whole pod loses, in MiB


class Occupant(msgspec.Struct, frozen=True):
    """One span of a GPU (a home is one), free when all of `who` (numbers) have gone; an empty `who` stays."""

    span: Span
    who: tuple[int, ...]


class ClearedSpan(msgspec.Struct, frozen=True):
    """One way to make room: where, and the numbers of the tenants to evict; none where there is room."""

    cost: EvictionCost
    start: int
    size: int
    goes: tuple[int, ...]


class Occupancy(msgspec.Struct, frozen=True):
    """What decides the cost of room on a GPU: equal for GPUs with equal tenants."""

    kind: str
    blocked: tuple[Placement, ...]
    foreign: tuple[Instance, ...]
    occupants: tuple[Occupant, ...]
    who: tuple[VictimRank, ...]


T = TypeVar("T")


def least_of(order: Sequence[T], fits: Callable[[Sequence[T]], bool]) -> list[T] | None:
    """The shortest prefix of this order that makes room, minus those that can stay after all, the last ones first. None
    where it does not fit even without all of them. No victim in the answer could stay."""
    length = next((length for length in range(len(order) + 1) if fits(order[:length])), None)
    if length is None:
        return None
    goes = list(order[:length])
    for each in reversed(goes[:-1]):
        less = [other for other in goes if other is not each]
        if fits(less):
            goes = less
    return goes


def eviction_cost_of(who: Iterable[VictimRank]) -> EvictionCost:
    parts = list(who)
    if not parts:
        return NO_COST
    return max(priority for priority, _ in parts), len(parts), sum(memory_mib for _, memory_mib in parts)


@dataclass(slots=True, eq=False)
class ClearingCosts:
    """The ways of one occupancy, each computed when first asked for."""

    occupancy: Occupancy
    table: TransitionTable
    mig: bool
    ways: dict[str, ClearedSpan | None] = field(init=False)
    """For each profile (WHOLE_GPU on a GPU without MIG) the way with the least cost; None where nothing helps."""
    costs: tuple[EvictionCost | None, ...] = field(init=False)  # the cost of room, in the order of the profiles
    _states: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profiles = self.table.model.profiles
        self.ways = {each.name: self._least(each) for each in profiles} if self.mig else {WHOLE_GPU: self._whole()}
        self.costs = tuple(way.cost if way is not None else None for way in self.ways.values())

    def count_without(self, level: int, profile: str) -> int:
        """How many devices of a profile fit when every tenant up to this priority has gone."""
        goes = [number for number, (priority, _) in enumerate(self.occupancy.who) if priority <= level]
        if not self.mig:
            return int(not self._left(goes) and not self.occupancy.blocked and not self.occupancy.foreign)
        state = self._states.get(level)
        if state is None:
            state = self._states[level] = self._state(goes)
        return self.table.count(state, profile)

    def _whole(self) -> ClearedSpan | None:
        occupancy = self.occupancy
        if occupancy.blocked or occupancy.foreign or any(not each.who for each in occupancy.occupants):
            return None
        goes = tuple(range(len(occupancy.who)))
        return ClearedSpan(eviction_cost_of(occupancy.who), 0, 0, goes)

    def _least(self, profile: Profile) -> ClearedSpan | None:
        """The cheapest place of a profile; of equal ones the one that keeps most placements possible."""
        best: tuple[EvictionCost, tuple[int, ...], ClearedSpan] | None = None
        for placement in profile.placements:
            goes = self._in_the_way(placement)
            if goes is None or (best is not None and self._cost(goes) > best[0]):
                continue
            found = self._with_engines(profile, placement, goes)
            if found is None:
                continue
            goes, rank = found
            cost = self._cost(goes)
            if best is None or (cost, rank) < best[:2]:
                best = (cost, rank, ClearedSpan(cost, placement.start, placement.size, tuple(sorted(goes))))
        return best[2] if best is not None else None

    def _in_the_way(self, placement: Placement) -> list[int] | None:
        occupied = [each.mask for each in self.occupancy.blocked] + [each.mask for each in self.occupancy.foreign]
        if any(placement.mask & mask for mask in occupied):
            return None
        goes: dict[int, None] = {}
        for each in self.occupancy.occupants:
            _, start, size = each.span
            if start < placement.start + placement.size and placement.start < start + size:
                if not each.who:
                    return None
                goes |= dict.fromkeys(each.who)
        return list(goes)

    def _with_engines(
        self, profile: Profile, placement: Placement, goes: list[int]
    ) -> tuple[list[int], tuple[int, ...]] | None:
        """The same, and further tenants whose media engines the instance needs."""
        others = [number for number in range(len(self.occupancy.who)) if number not in goes]
        others.sort(key=lambda number: (*self.occupancy.who[number], number))
        more = least_of(others, lambda some: self._rank(profile, placement, [*goes, *some]) is not None)
        rank = self._rank(profile, placement, [*goes, *more]) if more is not None else None
        return ([*goes, *more], rank) if more is not None and rank is not None else None

    def _rank(self, profile: Profile, placement: Placement, goes: Sequence[int]) -> tuple[int, ...] | None:
        choices = self.table.choices(self._state(goes), profile.name)
        return next((choice.rank for choice in choices if choice.start == placement.start), None)

    def _cost(self, goes: Iterable[int]) -> EvictionCost:
        return eviction_cost_of(self.occupancy.who[number] for number in goes)

    def _left(self, goes: Sequence[int]) -> list[Span]:
        return [each.span for each in self.occupancy.occupants if not each.who or any(n not in goes for n in each.who)]

    def _state(self, goes: Sequence[int]) -> State:
        blocked = list(self.occupancy.blocked)
        instances = list(self.occupancy.foreign)
        for profile, start, size in self._left(goes):
            if profile is None:  # booked before MIG was enabled: nothing else may be made beside it
                blocked.append(Placement(start, size))
            else:
                instances.append(Instance(profile, start, size))
        return self.table.state(instances, blocked=blocked)


GpuKey = tuple[int, int, GpuUuid]  # a GPU in node order: number of its node, its index there
Costs = tuple[EvictionCost | None, ...]  # the cost of room, in the order of the columns; None where it cannot be made


@dataclass(slots=True, eq=False)
class CostBucket:
    """GPUs with equal costs."""

    costs: Costs
    gpu_keys: SortedKeys[GpuKey] = field(default_factory=SortedKeys)


@dataclass(slots=True, eq=False)
class CostIndex:
    """All GPUs of one kind. `columns` are the profiles."""

    columns: tuple[str, ...]
    _buckets: dict[Costs, CostBucket] = field(default_factory=dict)
    _orders: dict[str, list[tuple[EvictionCost, int, CostBucket]]] = field(default_factory=dict)
    """Per requested profile, the buckets in order of cost."""
    _numbered: int = 0

    def put(self, costs: Costs, gpu_key: GpuKey) -> CostBucket:
        cost_bucket = self._buckets.get(costs)
        if cost_bucket is None:
            cost_bucket = self._buckets[costs] = CostBucket(costs)
            for profile, order in self._orders.items():
                self._insert(order, cost_bucket, self.columns.index(profile))
        cost_bucket.gpu_keys.add(gpu_key)
        return cost_bucket

    def take(self, cost_bucket: CostBucket, gpu_key: GpuKey) -> None:
        cost_bucket.gpu_keys.remove(gpu_key)
        if cost_bucket.gpu_keys:
            return
        del self._buckets[cost_bucket.costs]
        for profile, order in self._orders.items():
            cost = cost_bucket.costs[self.columns.index(profile)]
            if cost is not None:
                at = bisect.bisect_left(order, cost, key=lambda entry: entry[0])
                while order[at][2] is not cost_bucket:
                    at += 1
                del order[at]

    def order(self, profile: str) -> Sequence[tuple[EvictionCost, int, CostBucket]]:
        order = self._orders.get(profile)
        if order is None:
            order = self._orders[profile] = []
            for cost_bucket in self._buckets.values():
                self._insert(order, cost_bucket, self.columns.index(profile))
        return order

    def _insert(self, order: list[tuple[EvictionCost, int, CostBucket]], cost_bucket: CostBucket, column: int) -> None:
        cost = cost_bucket.costs[column]
        if cost is not None:
            self._numbered += 1
            bisect.insort(order, (cost, self._numbered, cost_bucket))
