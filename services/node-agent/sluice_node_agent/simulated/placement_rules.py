"""
What a simulated GPU refuses to create, and what it still could, independent of the allocator's placement code.

The driver's rules for every MIG model (NVIDIA MIG user guide): a placement is one of those listed for the profile,
spans do not overlap, and no engine is assigned twice.
"""

from collections.abc import Iterable

from sluice.mig.model import GpuModel, Placement, Profile
from sluice_node_agent.device.port import DeviceError, InsufficientResourcesError, InvalidArgumentError
from sluice_node_agent.simulated.hardware_file import Instance


def profile_of(model: GpuModel, profile_id: int) -> Profile:
    """The profile with this id (not NVML's enum, and not a place in a list). Raises InvalidArgumentError."""
    for profile in model.profiles:
        if profile.profile_id == profile_id:
            return profile
    raise InvalidArgumentError(f"{model.key} has no GPU instance profile {profile_id}")


def why_not(
    model: GpuModel, instances: Iterable[Instance], profile: Profile, start: int, size: int
) -> DeviceError | None:
    """Why no instance of `profile` can be created at this placement beside `instances`; None if it can."""
    if Placement(start, size) not in profile.placements:
        return InvalidArgumentError(f"{profile.name} cannot be placed at {start}:{size} on {model.key}")
    there = list(instances)
    for other in there:
        if start < other.start + other.size and other.start < start + size:
            taken = f"{other.profile} at {other.start}:{other.size}"
            return InsufficientResourcesError(f"{profile.name} at {start}:{size}: {taken} is in the way")
    placed = [found for other in there if (found := model.profile(other.profile)) is not None]
    if sum(other.name == profile.name for other in placed) >= profile.max_instances:
        return InsufficientResourcesError(f"there are {profile.max_instances} of {profile.name}, and no more can be")
    if sum(other.compute_slices for other in placed) + profile.compute_slices > model.compute_slices:
        return InsufficientResourcesError(f"{profile.name}: no compute slices are left")
    for name in ("copy", "decode", "encode", "jpeg", "ofa"):
        used = sum(getattr(other.engines, name) for other in placed)
        if used + getattr(profile.engines, name) > getattr(model.engines, name):
            return InsufficientResourcesError(f"{profile.name}: no {name} engine is left")
    return None


def remaining(model: GpuModel, instances: Iterable[Instance]) -> dict[str, int]:
    """
    How many more could be created now, per profile, if no other profile were.

    All placements of a profile have one size, so taking the first that fits again and again gives the most.
    """
    there = list(instances)
    counts: dict[str, int] = {}
    for profile in model.profiles:
        more = list(there)
        for span in sorted(profile.placements):
            if why_not(model, more, profile, span.start, span.size) is None:
                more.append(Instance(gi_id=-1, profile=profile.name, start=span.start, size=span.size))
        counts[profile.name] = len(more) - len(there)
    return counts
