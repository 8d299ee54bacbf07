"""
The cost of making room on one GPU: for each profile the place whose tenants cost least to evict, and those tenants.

Pure and of one GPU: its input is which tenants may go, at which priority, and what each would lose. GPUs with equal
tenants have equal answers, so each is computed once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.mig.layout import Instance
from sluice.mig.model import Placement, Profile
from sluice.mig.transition_table import State, TransitionTable
from sluice_allocator.core.placement.gpus import HomeKey

Loss = tuple[int, int, int]
"""The loss when some pods go: the highest priority among them, their number, their memory in MiB. Smaller is better."""
NO_LOSS: Loss = (-(1 << 62), 0, 0)
"""No eviction. Below every loss."""
WHOLE_GPU = ""
"""Stands for the profile of a GPU without MIG."""

Who = tuple[int, int]
"""A tenant that may go: its priority, and the memory that its whole pod loses, in MiB."""


class Occupant(msgspec.Struct, frozen=True):
    """
    One span of a GPU. It is free when all of `who` (numbers) have gone; an empty `who` stays.

    A home of shares is one span with several tenants.
    """

    span: HomeKey
    who: tuple[int, ...]


class Way(msgspec.Struct, frozen=True):
    """One way to make room: where, and the numbers of the tenants to evict; none where there is room."""

    loss: Loss
    start: int
    size: int
    goes: tuple[int, ...]


class Tenancy(msgspec.Struct, frozen=True):
    """What decides the cost of room on a GPU: equal for GPUs with equal tenants."""

    kind: str
    blocked: tuple[Placement, ...]
    foreign: tuple[Instance, ...]
    occupants: tuple[Occupant, ...]
    who: tuple[Who, ...]


def loss_of(who: Iterable[Who]) -> Loss:
    """The loss when these tenants go."""
    parts = list(who)
    if not parts:
        return NO_LOSS
    return max(priority for priority, _ in parts), len(parts), sum(memory_mib for _, memory_mib in parts)


@dataclass(slots=True, eq=False)
class Clearing:
    """The ways of one tenancy, each computed when first asked for."""

    tenancy: Tenancy
    table: TransitionTable
    mig: bool
    ways: dict[str, Way | None] = field(init=False)
    """For each profile (WHOLE_GPU on a GPU without MIG) the way with the least loss; None where nothing helps."""
    losses: tuple[Loss | None, ...] = field(init=False)
    """The cost of room, in the order of the profiles."""
    _states: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look at every place of every profile once."""
        if self.mig:
            self.ways = {profile.name: self._least(profile) for profile in self.table.model.profiles}
        else:
            self.ways = {WHOLE_GPU: self._whole()}
        self.losses = tuple(way.loss if way is not None else None for way in self.ways.values())

    def count_without(self, level: int, profile: str) -> int:
        """How many devices of a profile fit when every tenant up to this priority has gone."""
        goes = [number for number, (priority, _) in enumerate(self.tenancy.who) if priority <= level]
        if not self.mig:
            return int(not self._left(goes) and not self.tenancy.blocked and not self.tenancy.foreign)
        state = self._states.get(level)
        if state is None:
            state = self._states[level] = self._state(goes)
        return self.table.count(state, profile)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _whole(self) -> Way | None:
        tenancy = self.tenancy
        if tenancy.blocked or tenancy.foreign or any(not each.who for each in tenancy.occupants):
            return None
        goes = tuple(range(len(tenancy.who)))
        return Way(loss_of(tenancy.who), 0, 0, goes)

    def _least(self, profile: Profile) -> Way | None:
        """The cheapest place of a profile; of equal ones the one that keeps most placements possible."""
        best: tuple[Loss, tuple[int, ...], Way] | None = None
        for placement in profile.placements:
            goes = self._in_the_way(placement)
            if goes is None:
                continue
            if best is not None and self._loss(goes) > best[0]:
                continue
            found = self._with_engines(profile, placement, goes)
            if found is None:
                continue
            goes, rank = found
            loss = self._loss(goes)
            if best is None or (loss, rank) < best[:2]:
                best = (loss, rank, Way(loss, placement.start, placement.size, tuple(sorted(goes))))
        return best[2] if best is not None else None

    def _in_the_way(self, placement: Placement) -> list[int] | None:
        """The tenants where an instance would go; None if one of them stays."""
        mask = placement.mask
        blocked, foreign = self.tenancy.blocked, self.tenancy.foreign
        if any(mask & each.mask for each in blocked) or any(mask & each.mask for each in foreign):
            return None
        goes: dict[int, None] = {}
        for each in self.tenancy.occupants:
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
        rank = self._rank(profile, placement, goes)
        if rank is not None:
            return goes, rank
        others = [number for number in range(len(self.tenancy.who)) if number not in goes]
        others.sort(key=lambda number: (*self.tenancy.who[number], number))
        more: list[int] = []
        for number in others:
            more.append(number)
            rank = self._rank(profile, placement, [*goes, *more])
            if rank is not None:
                break
        else:
            return None
        for number in reversed(more[:-1]):
            without = [each for each in more if each != number]
            if (less := self._rank(profile, placement, [*goes, *without])) is not None:
                more, rank = without, less
        return [*goes, *more], rank

    def _rank(self, profile: Profile, placement: Placement, goes: Sequence[int]) -> tuple[int, ...] | None:
        """How good the place is when these have gone; None if it is still not free."""
        choices = self.table.choices(self._state(goes), profile.name)
        return next((choice.rank for choice in choices if choice.start == placement.start), None)

    def _loss(self, goes: Iterable[int]) -> Loss:
        return loss_of(self.tenancy.who[number] for number in goes)

    def _left(self, goes: Sequence[int]) -> list[HomeKey]:
        return [each.span for each in self.tenancy.occupants if not each.who or any(n not in goes for n in each.who)]

    def _state(self, goes: Sequence[int]) -> State:
        blocked = list(self.tenancy.blocked)
        instances = list(self.tenancy.foreign)
        for profile, start, size in self._left(goes):
            if profile is None:  # booked before MIG was enabled: nothing else may be made beside it
                blocked.append(Placement(start, size))
            else:
                instances.append(Instance(profile, start, size))
        return self.table.state(instances, blocked=blocked)
