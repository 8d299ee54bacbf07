"""
What an instance uses besides its span: compute slices, engines, and its profile's maximum number.

One generic rule for every model: each of these is a count with a budget. On most models only one can ever bind (an
engine, through `+me`); `scarce_budget_of` finds which, so that layouts with equal futures count as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sluice.mig.model import GpuModel


@dataclass(frozen=True, slots=True)
class InstanceBudget:
    """
    Counted resources of one model. `budget[n]` is the total of the n-th, `use[profile][n]` what one instance takes.

    `names[n]` names the n-th for people.
    """

    names: tuple[str, ...]
    budget: tuple[int, ...]
    use: dict[str, tuple[int, ...]]

    def only(self, kept: Sequence[int]) -> "InstanceBudget":
        """The same with only the resources at these positions."""
        return InstanceBudget(
            tuple(self.names[at] for at in kept),
            tuple(self.budget[at] for at in kept),
            {profile: tuple(use[at] for at in kept) for profile, use in self.use.items()},
        )


@lru_cache(maxsize=256)
def budget_of(model: GpuModel) -> InstanceBudget:
    """Every counted resource of a model. `scarce_budget_of` drops the first ones first."""
    profiles = model.profiles
    if not profiles:
        return InstanceBudget((), (), {})
    return InstanceBudget(
        names=(
            *(f"instances of {profile.name}" for profile in profiles),
            *("compute slices", "copy engines", "decoders", "encoders", "JPEG engines", "optical flow engines"),
        ),
        budget=(*(profile.max_instances for profile in profiles), model.compute_slices, *model.engines),
        use={
            profile.name: (*(int(profile is other) for other in profiles), profile.compute_slices, *profile.engines)
            for profile in profiles
        },
    )


@lru_cache(maxsize=256)
def scarce_budget_of(model: GpuModel) -> InstanceBudget:
    """
    Only the resources that can forbid an instance whose span is free.

    A layout within these never exceeds any of the others.
    """
    full = budget_of(model)
    kept = [at for at in range(len(full.budget)) if _most_used(model, full, at, ()) > full.budget[at]]
    for at in list(kept):
        others = [other for other in kept if other != at]
        if _most_used(model, full, at, others) <= full.budget[at]:
            kept = others
    return full.only(kept)


def _most_used(model: GpuModel, resources: InstanceBudget, at: int, limits: Sequence[int]) -> int:
    """
    The most of resource `at` that any layout within the budgets of `limits` can use.

    Walks the memory slices from left to right. A layout is the sequence of its placements; of those that end at the
    same slice and have used the same of `limits`, only the one that used most of `at` matters.
    """
    starting: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
    for profile in model.profiles:
        use = resources.use[profile.name]
        for placement in profile.placements:
            item = (placement.size, use[at], tuple(use[limit] for limit in limits))
            starting.setdefault(placement.start, []).append(item)
    budget = tuple(resources.budget[limit] for limit in limits)
    reached: list[dict[tuple[int, ...], int]] = [{} for _ in range(model.memory_slices + 1)]
    reached[0][(0,) * len(limits)] = 0
    for start in range(model.memory_slices):
        for used, most in reached[start].items():
            for size, more, use in ((1, 0, (0,) * len(limits)), *starting.get(start, ())):
                now = tuple(a + b for a, b in zip(used, use, strict=True))
                if all(a <= b for a, b in zip(now, budget, strict=True)):
                    ends = reached[start + size]
                    ends[now] = max(ends.get(now, 0), most + more)
    return max(reached[-1].values())
