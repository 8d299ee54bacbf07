"""
Decides what one empty GPU could serve: whether it fits a device of a claim, and how many.

Uses kinds of GPUs and classes of nodes, and neither free capacity nor a pod's other needs.
"""

from fractions import Fraction

from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice_allocator.core.placement.classes import NodeClass
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.homes import Home
from sluice_allocator.core.placement.ranking import full_profile
from sluice_allocator.core.placement.substitutes import has_substitutes
from sluice_allocator.core.placement.wants import Want, WholeGpu

_ANYTHING = 1 << 16
"""Devices that a GPU may hold that its agent could not read."""


def never_on(want: Want, group: NodeClass, gpu: Gpu, *, substitute: bool) -> WaitReason | None:
    """Why such a GPU on such nodes could not serve the claim even when empty; None when it could."""
    claim = want.claim
    if claim.shares_percent is not None:
        full = full_profile(gpu)
        if gpu.layout is not None and full is not None and not gpu.table.count(gpu.table.empty, full):
            return WaitReason.GPU_NOT_IN_LAYOUT
        return want.admits(gpu) or (None if "fractional" in group.modes else WaitReason.GPU_MODE_NOT_FIT)
    reasons: list[WaitReason] = []
    for mode in claim.modes:
        found: object = WaitReason.GPU_MODE_NOT_FIT
        if mode in group.modes:
            found = want.shape_on(gpu) if mode == "exclusive" else want.share_on(gpu, mode)
        if not isinstance(found, WaitReason):
            if mode == "exclusive" or _home_large_enough(want, gpu, mode):
                return None
            fixed = gpu.layout is not None
            found = WaitReason.GPU_NOT_IN_LAYOUT if fixed else WaitReason.GPU_INSUFFICIENT_MEMORY
        if mode == "exclusive" and mode in group.modes and most_exclusive(want, gpu, substitute=substitute):
            return None  # a larger one may serve
        reasons.append(found)
    return reasons[0]


def _home_large_enough(want: Want, gpu: Gpu, mode: str) -> bool:
    share = want.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return False
    if gpu.mig:
        return bool(want.home_profiles(gpu, share, 100))
    size = gpu.home_size(None, taking_turns=False, overcommit_percent=100)
    return Home(size, share.mode, want.domain).why_not(share) is None


def most_exclusive(want: Want, gpu: Gpu, *, substitute: bool) -> int:
    """The most exclusive devices of a claim on such a GPU, larger ones included where those may serve."""
    if isinstance(want.shape_on(gpu), WholeGpu):
        return 1
    profiles = {profile.name: None for profile in _serving(want, gpu, substitute=substitute)}
    if gpu.layout is not None:
        return sum(instance.profile in profiles for instance in gpu.layout)
    return max((gpu.table.count(gpu.table.empty, name) for name in profiles), default=0)


def _serving(want: Want, gpu: Gpu, *, substitute: bool) -> list[Profile]:
    shape = want.shape_on(gpu)
    found = [shape] if isinstance(shape, Profile) else []
    return [*found, *want.larger_on(gpu)] if substitute and has_substitutes(want.claim) else found


def part_of_one(want: Want, gpu: Gpu, *, substitute: bool) -> tuple[Fraction, Fraction]:
    """
    The least part of such a GPU that an exclusive device takes, of memory slices and of compute slices.

    The number of devices per GPU does not tell: a GPU holds one `+me` instance, and others beside it.
    """
    if is_unread(gpu) or isinstance(want.shape_on(gpu), WholeGpu):
        part = Fraction(not is_unread(gpu))
        return part, part
    whole, serving = gpu.model.largest, _serving(want, gpu, substitute=substitute)
    memory = min((Fraction(each.memory_slices, whole.memory_slices) for each in serving), default=Fraction(1))
    compute = min((Fraction(each.compute_slices, whole.compute_slices) for each in serving), default=Fraction(1))
    return memory, compute


def is_unread(gpu: Gpu) -> bool:
    """Whether its agent could not read the GPU yet: it may be anything."""
    return gpu.report.lost and not gpu.report.memory_mib


def most_on(want: Want, group: NodeClass, gpu: Gpu, *, substitute: bool) -> int:
    """The most devices of a claim on such a GPU. Shares of one claim are on as many GPUs."""
    if is_unread(gpu):
        return _ANYTHING
    if never_on(want, group, gpu, substitute=substitute) is not None:
        return 0
    if want.claim.shares_percent is not None:
        return 1
    shared = int(want.claim.modes != ("exclusive",))
    if "exclusive" not in want.claim.modes or "exclusive" not in group.modes:
        return shared
    return max(shared, most_exclusive(want, gpu, substitute=substitute))
