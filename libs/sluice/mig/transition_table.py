"""A model's layouts as a table of few states, so that a decision is a look-up, not a search.

Two layouts are one state when they occupy the same memory slices with as many instances and use the same of each scarce
resource. An A100 has 2319 layouts and 709 states. States and choices are computed on first use and cached."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NewType

from sluice.mig.layout import Instance, disjoint, scarce_budget_of
from sluice.mig.model import GpuModel, Placement, Profile

State = NewType("State", int)
"""A state of one model, for its own table: the occupied slices in the low bits, above them the scarce resources, then
the number of instances."""

Rank = tuple[int, int, int, int]
"""How good a place is, smaller is better; comparable across the states of all tables. See `TransitionTable`."""

_REMEMBERED_MAX = 100_000
"""Cached states. Real models have less than a tenth; odd reports cannot grow the cache without bound."""


_UNKNOWN = State(-1)


class UnknownProfileError(LookupError):
    """A profile that the model does not have. Carries `profile` and the `model` key."""

    def __init__(self, profile: str, model: str) -> None:
        super().__init__(f"{model} has no profile {profile}")
        self.profile = profile
        self.model = model


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """One place for a new instance: memory slices, the state afterwards, and its rank (smaller is better)."""

    start: int
    size: int
    state_after: State
    rank: Rank


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What a state still allows. Internal to the table."""

    free_slices: int
    creatable: dict[str, int]
    lacking: dict[str, Literal["slices", "engines"]]
    """For the profiles that do not fit: what is missing."""


class TransitionTable:
    """What can be placed where, and the resulting states, for one model.

    A place's rank is, in this order: the loss of the GPU's worth, that is of the compute slices which each profile
    alone could still fill, summed over the profiles (those with equal placements count once); the loss of the worth
    that ended instances would give back, over all placements; the most instances on the GPU, since one with few is
    sooner idle; the highest start (ADR 0073)."""

    def __init__(self, model: GpuModel) -> None:
        self.model = model
        self.empty = State(0)
        self._slices_mask = (1 << model.memory_slices) - 1
        self._resources = scarce_budget_of(model)
        self._shifts: list[int] = []
        shift = model.memory_slices
        for budget in self._resources.budget:
            self._shifts.append(shift)
            shift += budget.bit_length()
        self._counted = shift
        self._use = {name: self._packed(use) + (1 << shift) for name, use in self._resources.use.items()}
        self._shapes = {profile.placements: profile.compute_slices for profile in reversed(model.profiles)}
        self._worths: dict[int, tuple[int, int]] = {}
        self._facts: dict[State, StateFacts] = {}
        self._after: dict[tuple[State, Instance], State | None] = {}
        self._before: dict[tuple[State, Instance], State] = {}
        self._choices: dict[str, dict[State, tuple[PlacementChoice, ...]]] = {
            profile.name: {} for profile in model.profiles
        }

    def state(self, instances: Iterable[Instance], *, blocked: Iterable[Placement] = ()) -> State:
        """The state of a GPU with these instances, and these spans blocked. Accepts whatever hardware may report."""
        mask = count = 0
        used = [0] * len(self._shifts)
        for instance in instances:
            mask |= instance.mask
            count += instance.profile in self._use
            for at, more in enumerate(self._resources.use.get(instance.profile, ())):
                used[at] += more
        for span in blocked:
            mask |= span.mask
        within = tuple(min(have, budget) for have, budget in zip(used, self._resources.budget, strict=True))
        return State(mask & self._slices_mask | self._packed(within) | count << self._counted)

    def with_one_more(self, state: State, instance: Instance) -> State | None:
        key = (state, instance)
        after = self._after.get(key, _UNKNOWN)
        if after is _UNKNOWN:
            if len(self._after) >= _REMEMBERED_MAX:
                self._after.clear()
            profile = self.model.profile(instance.profile)
            free = profile is not None and not state & instance.mask and self._allowed(state, profile) > 0
            after = State((state | instance.mask) + self._use[instance.profile]) if free else None
            self._after[key] = after
        return after

    def with_one_less(self, state: State, instance: Instance) -> State:
        key = (state, instance)
        before = self._before.get(key)
        if before is None:
            if len(self._before) >= _REMEMBERED_MAX:
                self._before.clear()
            before = self._before[key] = self.release(state, instance)
        return before

    def release(self, state: State, instance: Instance) -> State:
        """The state without `instance`, exact for states reached by choices. Raises ValueError if not in it."""
        use = self._resources.use.get(instance.profile)
        if use is None:
            raise UnknownProfileError(instance.profile, self.model.key)
        if state & instance.mask != instance.mask:
            raise ValueError(f"{instance} is not part of a state in which its slices are free")
        if any(less > have for less, have in zip(use, self._used(state), strict=True)):
            raise ValueError(f"{instance} is not part of a state that uses less than it")
        return State((state ^ instance.mask) - self._use[instance.profile])

    def _packed(self, used: tuple[int, ...]) -> int:
        return sum(count << shift for count, shift in zip(used, self._shifts, strict=True))

    def _used(self, state: State) -> tuple[int, ...]:
        pairs = zip(self._shifts, self._resources.budget, strict=True)
        return tuple((state >> shift) & ((1 << budget.bit_length()) - 1) for shift, budget in pairs)

    def choices(self, state: State, profile_name: str) -> tuple[PlacementChoice, ...]:
        """Every place for one more instance of the profile, best first; empty when it does not fit."""
        remembered = self._choices.get(profile_name)
        if remembered is None:
            raise UnknownProfileError(profile_name, self.model.key)
        choices = remembered.get(state)
        if choices is None:
            if len(remembered) >= _REMEMBERED_MAX:
                remembered.clear()
            choices = remembered[state] = self._rank(state, profile_name)
        return choices

    def _rank(self, state: State, profile_name: str) -> tuple[PlacementChoice, ...]:
        profile = self.model.profile(profile_name)
        assert profile is not None
        if self._allowed(state, profile) == 0:
            return ()
        worth, returns = self._worth(state)
        instances = state >> self._counted
        choices: list[PlacementChoice] = []
        for placement in profile.placements:
            if not state & placement.mask:
                after_state = State((state | placement.mask) + self._use[profile_name])
                after, returns_after = self._worth(after_state)
                rank = (worth - after, returns - returns_after, -instances, -placement.start)
                choices.append(PlacementChoice(placement.start, placement.size, after_state, rank))
        return tuple(sorted(choices, key=lambda choice: choice.rank))

    def _worth(self, state: State) -> tuple[int, int]:
        """The worth, and what would come back: summed over all placements, times their slices, each freed alone."""
        occupied = state & self._slices_mask
        known = self._worths.get(occupied)
        if known is None:
            if len(self._worths) >= _REMEMBERED_MAX:
                self._worths.clear()
            worth = self._fillable(occupied)
            freed = (
                slices * (self._fillable(occupied & ~placement.mask) - worth)
                for placements, slices in self._shapes.items()
                for placement in placements
            )
            known = self._worths[occupied] = worth, sum(freed)
        return known

    def _fillable(self, occupied: int) -> int:
        return sum(slices * disjoint(placements, occupied) for placements, slices in self._shapes.items())

    def creatable(self, state: State) -> dict[str, int]:
        """Per profile, how many more instances of it alone fit now. These are alternatives."""
        return dict(self._facts_of(state).creatable)

    def count(self, state: State, profile_name: str) -> int:
        found = self._facts_of(state).creatable.get(profile_name)
        if found is None:
            raise UnknownProfileError(profile_name, self.model.key)
        return found

    def creatable_total(self, state: State) -> int:
        """The sum of `creatable`: a sum of alternatives, never a capacity."""
        return sum(self._facts_of(state).creatable.values())

    def free_slices(self, state: State) -> int:
        return self.model.memory_slices - (state & self._slices_mask).bit_count()

    def why_not(self, state: State, profile_name: str) -> Literal["slices", "engines"] | None:
        """Why one more does not fit: `slices` when no placement is free, else `engines`; None when it does."""
        if self.count(state, profile_name):
            return None
        return self._facts_of(state).lacking[profile_name]

    def _facts_of(self, state: State) -> StateFacts:
        facts = self._facts.get(state)
        if facts is None:
            if len(self._facts) >= _REMEMBERED_MAX:
                self._facts.clear()
            facts = self._facts[state] = self._work_out(state)
        return facts

    def _work_out(self, state: State) -> StateFacts:
        occupied = state & self._slices_mask
        free = self.free_slices(state)
        creatable: dict[str, int] = {}
        lacking: dict[str, Literal["slices", "engines"]] = {}
        for profile in self.model.profiles:
            allowed = self._allowed(state, profile)
            creatable[profile.name] = min(allowed, disjoint(profile.placements, occupied))
            if not creatable[profile.name]:
                is_full = all(occupied & placement.mask for placement in profile.placements)
                lacking[profile.name] = "slices" if is_full else "engines"
        return StateFacts(free, creatable, lacking)

    def _allowed(self, state: State, profile: Profile) -> int:
        """How many more the scarce resources allow, whatever slices are free; at most the profile's own maximum."""
        needs = zip(self._resources.use[profile.name], self._used(state), self._resources.budget, strict=True)
        return min((profile.max_instances, *((budget - used) // one for one, used, budget in needs if one)))


@lru_cache(maxsize=256)
def table_of(model: GpuModel) -> TransitionTable:
    return TransitionTable(model)
