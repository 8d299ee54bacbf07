"""Compute what booked devices count against a namespace's limits, to enforce and to show it. Never rounded to 0."""

from collections.abc import Iterable

import msgspec

from sluice.contracts.messages import DeviceGrant, Share
from sluice.mig.model import GpuModel
from sluice.mig.profile_name import ProfileName, ProfileNameError

PERMILLE = 1000


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Devices, memory (MiB) and thousandths of compute slices: in whole slices 1 % of a GPU would be free of charge."""

    gpus: int = 0
    memory_mib: int = 0
    compute_permille: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.gpus + other.gpus, self.memory_mib + other.memory_mib, self.compute_permille + other.compute_permille
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.gpus - other.gpus, self.memory_mib - other.memory_mib, self.compute_permille - other.compute_permille
        )


NOTHING = Usage()


def usage_of_device(grant: DeviceGrant, model: GpuModel | None) -> Usage:
    """What one device counts, on a GPU of `model`.

    An instance counts the memory and the compute slices of its profile. A whole GPU counts its memory, and the compute
    slices of its largest profile; one that cannot be partitioned has one compute slice. A share counts the memory that
    it may use (also where a pool overcommits memory), and its part of the GPU's compute slices: the part of the SMs
    where it has a bound, else the part of the memory, rounded up to a thousandth. Time quotas do not count.

    Without a `model` (the GPU is gone), an instance counts what its profile's name says, a whole GPU counts as one
    device only, and a share without a bound of its SMs counts no compute."""
    if grant.share is not None:
        return Usage(1, grant.share.memory_mib, _compute_of_share(grant, grant.share, model))
    if model is None:
        return _by_name(grant.profile)
    if grant.profile is None:
        return Usage(1, model.memory_mib, compute_slices_of(model) * PERMILLE)
    profile = model.profile(grant.profile)
    if profile is None:  # another driver renamed the profiles
        return _by_name(grant.profile)
    return Usage(1, profile.memory_mib, profile.compute_slices * PERMILLE)


def total(parts: Iterable[Usage]) -> Usage:
    return sum(parts, NOTHING)


def compute_slices_of(model: GpuModel) -> int:
    return model.largest.compute_slices if model.profiles else max(1, model.compute_slices)


def _compute_of_share(grant: DeviceGrant, share: Share, model: GpuModel | None) -> int:
    slices = compute_slices_of(model) if model is not None else 1
    if share.sm_partition:
        return share.sm_partition * slices * PERMILLE // 100
    if model is None:
        return 0
    partitioned = grant.profile is not None and model.profiles
    memory_mib = model.largest.memory_mib if partitioned else model.memory_mib
    return -(-share.memory_mib * slices * PERMILLE // max(1, memory_mib))


def _by_name(profile: str | None) -> Usage:
    try:
        name = ProfileName.parse(profile or "")
    except ProfileNameError:
        return Usage(1)
    return Usage(1, name.memory_gb * 1024, name.slices * PERMILLE)
