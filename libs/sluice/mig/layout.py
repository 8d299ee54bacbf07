"""
Layouts: the instances on one GPU, whether they may exist together, and how many more of each profile fit.

One rule for all models (NVIDIA MIG user guide; the counts are those of nvidia-smi -lgip): spans of memory slices
do not overlap, and counted resources (compute slices, engines, a profile's maximum) stay within the GPU's budget.
Everything here is computed from the instances each time, for clarity; use `sluice.mig.transition_table` for many
decisions.
"""

from collections.abc import Iterable, Sequence

import msgspec

from sluice.mig.instance_budget import budget_of
from sluice.mig.model import Engines, GpuModel, Placement, Profile


class Instance(msgspec.Struct, frozen=True, order=True, gc=False):
    """A placed instance: `profile` is a profile's name, `start` and `size` are memory slices."""

    profile: str
    start: int
    size: int

    @property
    def mask(self) -> int:
        """The span as bits: bit n is memory slice n."""
        return ((1 << self.size) - 1) << self.start


Layout = tuple[Instance, ...]


def is_legal(model: GpuModel, instances: Iterable[Instance]) -> bool:
    """Whether these instances may exist together on one GPU."""
    return illegal_reason(model, tuple(instances)) is None


def illegal_reason(model: GpuModel, instances: Sequence[Instance]) -> str | None:
    """The first rule that forbids these instances together, in words; None when none does."""
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
    """Whether `instance` can be created beside `instances`."""
    return is_legal(model, (*instances, instance))


def creatable(model: GpuModel, instances: Iterable[Instance], *, blocked: Iterable[Placement] = ()) -> dict[str, int]:
    """
    Per profile, how many more instances of it alone fit now.

    These are alternatives: their sum is never a capacity. Instances of unknown profiles, and `blocked` spans, only
    occupy their slices.
    """
    present = tuple(instances)
    occupied = 0
    for mask in (*(instance.mask for instance in present), *(span.mask for span in blocked)):
        occupied |= mask
    budget = budget_of(model).budget
    left = [has - used for has, used in zip(budget, _used(model, present), strict=True)]
    return {profile.name: _count_fitting(model, profile, occupied, left) for profile in model.profiles}


def _count_fitting(model: GpuModel, profile: Profile, occupied: int, left: Sequence[int]) -> int:
    use = budget_of(model).use[profile.name]
    allowed = min(has // one for has, one in zip(left, use, strict=True) if one)
    return max(0, min(disjoint(profile.placements, occupied), allowed))


def disjoint(placements: Iterable[Placement], occupied: int) -> int:
    """
    The most of these placements that are free at the same time, beside the `occupied` slices.

    Greedy by earliest end, which is exact for spans on a line.
    """
    count = 0
    for placement in sorted(placements, key=lambda span: span.start + span.size):
        if not occupied & placement.mask:
            occupied |= placement.mask
            count += 1
    return count


def engines_used(model: GpuModel, instances: Iterable[Instance]) -> Engines:
    """What these instances use of each engine. Instances of unknown profiles use none."""
    total = Engines()
    for instance in instances:
        profile = model.profile(instance.profile)
        if profile is not None:
            total += profile.engines
    return total


def _used(model: GpuModel, instances: Iterable[Instance]) -> list[int]:
    """What is used of each counted resource, in the order of `budget_of`."""
    resources = budget_of(model)
    used = [0] * len(resources.budget)
    for instance in instances:
        for at, more in enumerate(resources.use.get(instance.profile, ())):
            used[at] += more
    return used
