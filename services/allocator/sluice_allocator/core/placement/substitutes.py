"""
Larger profiles that may serve where the one that is asked for has no place, and in which order they are tried.

A substitute never has less memory, fewer SMs or fewer engines of any kind; of those that do, the one that wastes least
is tried first, on each model by itself. Only MIG instances of one's own have substitutes. Nothing is booked here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from sluice.contracts.messages import Claim
from sluice.mig.catalog import catalog
from sluice.mig.model import Engines, GpuModel, Profile
from sluice.mig.profile_name import ProfileName
from sluice_allocator.core.placement.rules import PlacingRules

TRIED_MAX = 48
"""
So many ways to put larger profiles in place of the asked ones are tried for one pod. A claim has at most six, so these
are all that there are for one and for two claims.
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """What a substitute must have at least: `memory_mib` in MiB, `multiprocessors` in SMs."""

    memory_mib: int
    multiprocessors: int
    engines: Engines

    def is_met_by(self, profile: Profile) -> bool:
        """Whether a profile has all of it. Compute before memory would not do: a 2g.10gb is no 1g.20gb."""
        return (
            profile.memory_mib >= self.memory_mib
            and profile.multiprocessors >= self.multiprocessors
            and all(has >= needs for has, needs in zip(profile.engines, self.engines, strict=True))
        )


def has_substitutes(claim: Claim) -> bool:
    """Whether larger profiles could serve a claim: a share has none, and a list of modes is served by its next mode."""
    return claim.modes == ("exclusive",) and claim.shares_percent is None and not claim.snug


def larger_profiles(model: GpuModel, claim: Claim, exact: Profile | None, rules: PlacingRules) -> tuple[Profile, ...]:
    """
    The profiles of a model that may serve instead of `exact`, those that waste least first.

    `exact` is None where the model has no profile for the claim. What the claim names is then as large as it is
    anywhere, so that a name that means less on another model gives nobody less than he may have meant.
    """
    floor = _floor(model, claim, exact)
    if floor is None:
        return ()
    names = rules.geometry_of(model) if claim.known_geometries else tuple(each.name for each in model.profiles)
    found = [
        profile
        for profile in model.profiles
        if profile != exact and profile.name in names and rules.allows(model, profile.name) and floor.is_met_by(profile)
    ]
    return tuple(sorted(found, key=_least_waste_first))


def ways(steps: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """
    In which steps the claims of a pod are served by larger profiles: 0 is the asked one, 1 the next larger, ...

    `steps` are those that may be tried for each claim, the smallest first. One claim larger comes before several, then
    the smallest steps in all; at most TRIED_MAX.
    """
    if not all(steps):
        return

    def turn(at: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        way = tuple(of_claim[index] for of_claim, index in zip(steps, at, strict=True))
        return sum(1 for step in way if step) > 1, sum(way), way

    first = (0,) * len(steps)
    left, seen, given = [(turn(first), first)], {first}, 0
    while left and given < TRIED_MAX:  # whatever follows one is behind it, so nothing has to be sorted as a whole
        (_, larger, way), at = heappop(left)
        if larger:
            given += 1
            yield way
        for number in range(len(at)):
            after = (*at[:number], at[number] + 1, *at[number + 1 :])
            if after[number] < len(steps[number]) and after not in seen:
                seen.add(after)
                heappush(left, (turn(after), after))


def _floor(model: GpuModel, claim: Claim, exact: Profile | None) -> Floor | None:
    known = exact if exact is not None or claim.profile is None else model.profile(claim.profile)
    if known is not None:
        return Floor(known.memory_mib, known.multiprocessors, known.engines)
    return _largest_of_that_name(claim.profile) if claim.profile is not None else None


@lru_cache(maxsize=1024)
def _largest_of_that_name(name: str) -> Floor | None:
    """What a name means at most, over all models that are known; None when none has it."""
    floor: Floor | None = None
    for model in catalog():
        profile = model.profile(name)
        if profile is None:
            continue
        if floor is None:
            floor = Floor(profile.memory_mib, profile.multiprocessors, profile.engines)
        floor = replace(
            floor,
            memory_mib=max(floor.memory_mib, profile.memory_mib),
            multiprocessors=max(floor.multiprocessors, profile.multiprocessors),
            engines=Engines(*(max(one, other) for one, other in zip(floor.engines, profile.engines, strict=True))),
        )
    return floor


def _least_waste_first(profile: Profile) -> tuple[int, int, int, int, str]:
    """Memory slices and compute slices that others could have; then plain profiles before those with scarce engines."""
    size = min((placement.size for placement in profile.placements), default=0)
    attributes = len(ProfileName.parse(profile.name).attributes)
    return size, profile.compute_slices, profile.memory_mib, attributes, profile.name
