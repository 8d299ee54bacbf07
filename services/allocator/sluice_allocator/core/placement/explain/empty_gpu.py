"""Decides what one empty GPU could serve: whether it fits a device of a claim, and how many. Uses kinds of GPUs and
classes of nodes, and neither free capacity nor a pod's other needs."""

from fractions import Fraction

from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.shared_device import fits_alone
from sluice_allocator.core.placement.spec.larger_profiles import has_substitutes

_ANYTHING = 1 << 16  # devices that a GPU may hold that its agent could not read


def never_on(spec: DeviceSpec, group: NodeClass, gpu: Gpu, *, substitute: bool) -> WaitReason | None:
    """Why such a GPU on such nodes could not serve the claim even when empty; None when it could."""
    claim = spec.claim
    if claim.shares_percent is not None:
        full = gpu.full_profile
        if gpu.layout is not None and full is not None and not gpu.table.count(gpu.table.empty, full):
            return WaitReason.GPU_NOT_IN_LAYOUT
        return spec.admits(gpu) or (None if "fractional" in group.modes else WaitReason.GPU_MODE_NOT_FIT)
    reasons: list[WaitReason] = []
    for mode in claim.modes:
        found: object = WaitReason.GPU_MODE_NOT_FIT
        if mode in group.modes:
            found = spec.shape_on(gpu) if mode == "exclusive" else spec.share_on(gpu, mode)
        if not isinstance(found, WaitReason):
            if mode == "exclusive" or _home_large_enough(spec, gpu, mode):
                return None
            fixed = gpu.layout is not None
            found = WaitReason.GPU_NOT_IN_LAYOUT if fixed else WaitReason.GPU_INSUFFICIENT_MEMORY
        if mode == "exclusive" and mode in group.modes and most_exclusive(spec, gpu, substitute=substitute):
            return None  # a larger one may serve
        reasons.append(found)
    return reasons[0]


def _home_large_enough(spec: DeviceSpec, gpu: Gpu, mode: str) -> bool:
    share = spec.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return False
    if gpu.mig:
        return bool(spec.home_profiles(gpu, share, 100))
    size = gpu.home_size(None, taking_turns=False, overcommit_percent=100)
    return fits_alone(size, share)


def most_exclusive(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> int:
    """The most exclusive devices of a claim on such a GPU, larger ones included where those may serve."""
    if isinstance(spec.shape_on(gpu), WholeGpu):
        return 1
    profiles = {profile.name: None for profile in _serving(spec, gpu, substitute=substitute)}
    if gpu.layout is not None:
        return sum(instance.profile in profiles for instance in gpu.layout)
    return max((gpu.table.count(gpu.table.empty, name) for name in profiles), default=0)


def _serving(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> list[Profile]:
    shape = spec.shape_on(gpu)
    found = [shape] if isinstance(shape, Profile) else []
    return [*found, *spec.larger_on(gpu)] if substitute and has_substitutes(spec.claim) else found


def part_of_one(spec: DeviceSpec, gpu: Gpu, *, substitute: bool) -> tuple[Fraction, Fraction]:
    """The least part of such a GPU that an exclusive device takes, of memory slices and of compute slices. The number
    of devices per GPU does not tell: a GPU holds one `+me` instance, and others beside it."""
    if is_unread(gpu) or isinstance(spec.shape_on(gpu), WholeGpu):
        part = Fraction(not is_unread(gpu))
        return part, part
    whole, serving = gpu.model.largest, _serving(spec, gpu, substitute=substitute)
    memory = min((Fraction(each.memory_slices, whole.memory_slices) for each in serving), default=Fraction(1))
    compute = min((Fraction(each.compute_slices, whole.compute_slices) for each in serving), default=Fraction(1))
    return memory, compute


def is_unread(gpu: Gpu) -> bool:
    """Whether its agent could not read the GPU yet: it may be anything."""
    return gpu.report.lost and not gpu.report.memory_mib


def most_on(spec: DeviceSpec, group: NodeClass, gpu: Gpu, *, substitute: bool) -> int:
    """The most devices of a claim on such a GPU. Shares of one claim are on as many GPUs."""
    if is_unread(gpu):
        return _ANYTHING
    if never_on(spec, group, gpu, substitute=substitute) is not None:
        return 0
    if spec.claim.shares_percent is not None:
        return 1
    shared = int(spec.claim.modes != ("exclusive",))
    if "exclusive" not in spec.claim.modes or "exclusive" not in group.modes:
        return shared
    return max(shared, most_exclusive(spec, gpu, substitute=substitute))
