"""Pods for one A100-40GB profile each: Poisson arrivals, lifetimes of mean 1, equal seeds for every packer."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

COMPUTE_SLICES = {"1g.5gb": 1, "1g.10gb": 1, "2g.10gb": 2, "3g.20gb": 3, "4g.20gb": 4, "7g.40gb": 7}
SLICES_PER_GPU = 7
MIXES = {
    "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
    "small": (0.40, 0.10, 0.25, 0.15, 0.05, 0.05),
    "large": (0.05, 0.05, 0.10, 0.20, 0.25, 0.35),
    "bimodal": (0.45, 0.05, 0.05, 0.05, 0.05, 0.35),
    "noscarce": (0.30, 0.0, 0.30, 0.25, 0.0, 0.15),
    "mid": (0.10, 0.10, 0.30, 0.30, 0.15, 0.05),
}
"""Per mix the part of the pods that asks for each profile, in the order of `COMPUTE_SLICES`. `noscarce` has only
profiles that fixed templates know."""
FOUR = "four"
ALL_MIXES = MIXES | {FOUR: (0.30, 0.0, 0.30, 0.25, 0.0, 0.15)}
"""The last has profiles that HAMi 2.10 allows alone. It is kept out of every mean."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod; times in mean lifetimes."""

    number: int
    at: float
    until: float
    profile: str


def arrivals(mix: str, seed: int, *, count: int, gpus: int, load: float = 1.0) -> Iterator[Arrival]:
    """The pods of one run, in order of time."""
    weights = ALL_MIXES[mix]
    mean_slices = sum(part * slices for part, slices in zip(weights, COMPUTE_SLICES.values(), strict=True))
    per_time = load * gpus * SLICES_PER_GPU / mean_slices
    random = Random(f"{mix} {seed}")
    profiles, cumulative = tuple(COMPUTE_SLICES), tuple(itertools.accumulate(weights))
    now = 0.0
    for number in range(count):
        now += random.expovariate(per_time)
        (profile,) = random.choices(profiles, cum_weights=cumulative)
        yield Arrival(number, now, now + random.expovariate(1.0), profile)
