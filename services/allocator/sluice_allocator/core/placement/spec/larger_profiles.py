"""Larger profiles that may serve when the requested one has no place, and the order in which they are tried. A
substitute never has less memory, fewer SMs or fewer engines of any kind; of those that do, the one that wastes least is
tried first, on each model by itself. Only exclusive MIG instances have substitutes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from sluice.contracts.messages import Claim
from sluice.mig.catalog import catalog
from sluice.mig.model import Engines, GpuModel, Profile
from sluice.mig.profile_name import ProfileName
from sluice_allocator.core.placement.spec.config import PlacementConfig

TRIED_MAX = 48
"""Most combinations of larger profiles tried for one pod: all of them for one claim or two."""


@dataclass(frozen=True, slots=True)
class MinimumProfile:
    """The least that a substitute has: `memory_mib` in MiB, `multiprocessors` in SMs."""

    memory_mib: int
    multiprocessors: int
    engines: Engines

    def is_met_by(self, profile: Profile) -> bool:
        """Whether a profile has all of it. Compute alone is not enough: a 2g.10gb is no 1g.20gb."""
        return (
            profile.memory_mib >= self.memory_mib
            and profile.multiprocessors >= self.multiprocessors
            and all(has >= needs for has, needs in zip(profile.engines, self.engines, strict=True))
        )


def is_exclusive_only(claim: Claim) -> bool:
    """Whether its devices are instances or whole GPUs, and neither shares nor an amount."""
    return claim.modes == ("exclusive",) and claim.shares_percent is None


def has_substitutes(claim: Claim) -> bool:
    """Whether larger profiles could serve a claim: a share has none, and a list of modes uses its next mode."""
    return is_exclusive_only(claim) and not claim.snug


def larger_profiles(
    model: GpuModel, claim: Claim, exact: Profile | None, rules: PlacementConfig
) -> tuple[Profile, ...]:
    """The profiles that may serve instead of `exact`, least waste first. Where the model has none for the claim
    (`exact` is None), its name counts as large as on any model."""
    known = exact if exact is not None or claim.profile is None else model.profile(claim.profile)
    floor = _largest_of_that_name(claim.profile) if claim.profile is not None else None
    if known is not None:
        floor = MinimumProfile(known.memory_mib, known.multiprocessors, known.engines)
    if floor is None:
        return ()
    found = [each for each in rules.choosable(model, claim) if each != exact and floor.is_met_by(each)]
    return tuple(sorted(found, key=_least_waste_first))


def step_combinations(steps: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """The combinations in which claims use larger profiles (0: the requested one), from the `steps` that may be tried
    for each: one larger claim first, then the smallest total; at most TRIED_MAX."""
    if not all(steps):
        return

    def turn(at: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        way = tuple(of_claim[index] for of_claim, index in zip(steps, at, strict=True))
        return sum(1 for step in way if step) > 1, sum(way), way

    first = (0,) * len(steps)
    left, seen, given = [(turn(first), first)], {first}, 0
    while left and given < TRIED_MAX:  # successors come later, so nothing has to be sorted as a whole
        (_, larger, way), at = heappop(left)
        if larger:
            given += 1
            yield way
        for number in range(len(at)):
            after = (*at[:number], at[number] + 1, *at[number + 1 :])
            if after[number] < len(steps[number]) and after not in seen:
                seen.add(after)
                heappush(left, (turn(after), after))


@lru_cache(maxsize=1024)
def _largest_of_that_name(name: str) -> MinimumProfile | None:
    of_name = [profile for model in catalog() if (profile := model.profile(name)) is not None]
    if not of_name:
        return None
    memory_mib, sms = max(each.memory_mib for each in of_name), max(each.multiprocessors for each in of_name)
    engines = (max(column) for column in zip(*(each.engines for each in of_name), strict=True))
    return MinimumProfile(memory_mib, sms, Engines(*engines))


def _least_waste_first(profile: Profile) -> tuple[int, int, int, int, str]:
    """The slices taken from others; then plain profiles before those with scarce engines."""
    size = min((placement.size for placement in profile.placements), default=0)
    attributes = len(ProfileName.parse(profile.name).attributes)
    return size, profile.compute_slices, profile.memory_mib, attributes, profile.name
