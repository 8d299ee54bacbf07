"""Layouts: the instances on one GPU, whether they may exist together, and how many more of each profile fit.

Spans of memory slices do not overlap, and counted resources (compute slices, engines, a profile's maximum) stay within
the GPU's budget (NVIDIA MIG user guide; the counts are those of nvidia-smi -lgip)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from sluice.mig.model import GpuModel, Placement


@dataclass(frozen=True, slots=True)
class InstanceBudget:
    """Counted resources of a model: `budget[n]` in all, `use[profile][n]` of an instance, `names[n]` for people."""

    names: tuple[str, ...]
    budget: tuple[int, ...]
    use: dict[str, tuple[int, ...]]

    def only(self, kept: Sequence[int]) -> "InstanceBudget":
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
    """Only the resources that can forbid an instance whose span is free; within these, no other is exceeded."""
    full = budget_of(model)
    kept = [at for at in range(len(full.budget)) if _most_used(model, full, at, ()) > full.budget[at]]
    for at in list(kept):
        others = [other for other in kept if other != at]
        if _most_used(model, full, at, others) <= full.budget[at]:
            kept = others
    return full.only(kept)


def _most_used(model: GpuModel, resources: InstanceBudget, at: int, limits: Sequence[int]) -> int:
    """The most of resource `at` that any layout within the budgets of `limits` can use.

    Walks the memory slices from left to right. A layout is the sequence of its placements; of those that end at the
    same slice and have used the same of `limits`, only the one that used most of `at` matters."""
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


class Instance(msgspec.Struct, frozen=True, order=True, gc=False):
    """A placed instance: `profile` is a profile's name, `start` and `size` are memory slices."""

    profile: str
    start: int
    size: int

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start


Layout = tuple[Instance, ...]


def is_legal(model: GpuModel, instances: Iterable[Instance]) -> bool:
    return illegal_reason(model, tuple(instances)) is None


def illegal_reason(model: GpuModel, instances: Sequence[Instance]) -> str | None:
    occupied = 0
    for instance in instances:
        profile = model.profile(instance.profile)
        if profile is None:
            return f"{model.key} has no profile {instance.profile}"
        if Placement(instance.start, instance.size) not in profile.placements:
            return f"{instance.profile} cannot be placed at {instance.start}:{instance.size}"
        if occupied & instance.mask:
            return f"{instance.profile} at {instance.start}:{instance.size} overlaps another instance"
        occupied |= instance.mask
    resources = budget_of(model)
    for name, used, budget in zip(resources.names, _used(model, instances), resources.budget, strict=True):
        if used > budget:
            return f"{used} {name} are used and there are {budget}"
    return None


def fits(model: GpuModel, instances: Iterable[Instance], instance: Instance) -> bool:
    return is_legal(model, (*instances, instance))


def disjoint(placements: Iterable[Placement], occupied: int) -> int:
    """The most placements free at once beside `occupied` slices: greedy by earliest end, exact on a line."""
    count = 0
    for placement in sorted(placements, key=lambda span: span.start + span.size):
        if not occupied & placement.mask:
            occupied |= placement.mask
            count += 1
    return count


def _used(model: GpuModel, instances: Iterable[Instance]) -> list[int]:
    resources = budget_of(model)
    used = [0] * len(resources.budget)
    for instance in instances:
        for at, more in enumerate(resources.use.get(instance.profile, ())):
            used[at] += more
    return used
