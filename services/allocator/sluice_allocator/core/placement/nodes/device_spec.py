"""What one device of a claim has to be, per kind of GPU: the profile, the share, or why neither; never less than asked.
A GPU without MIG is given whole or shared. Percents are of what it can give: with MIG of its largest profile."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.messages import Claim, Mode, Share
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax.device_limit import is_whole
from sluice.mig.model import GpuModel, Profile
from sluice.mig.model_names import is_meant
from sluice.mig.profile_name import ProfileName
from sluice.mig.share_width import width_percent
from sluice_allocator.core.placement.nodes.gpu import WHOLE_GPU, Gpu
from sluice_allocator.core.placement.nodes.shared_device import TrustDomain
from sluice_allocator.core.placement.spec.config import PlacementConfig
from sluice_allocator.core.placement.spec.larger_profiles import has_substitutes, larger_profiles

_REMEMBERED_MAX = 4096
_HOME_MAY_LOSE_PERCENT = 20
"""A smaller instance is the better home when it loses at most this part of the shares that the whole GPU could hold,
since the rest of the GPU stays free."""


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """The shape of a GPU without MIG that is given whole."""


WHOLE = WholeGpu()
Shape = Profile | WholeGpu | WaitReason


@dataclass(slots=True, eq=False)
class DeviceSpec:
    """One device of one claim. Two claims that differ only in their container have the same."""

    claim: Claim
    domain: TrustDomain  # namespace and uid: the trust domain whose shares may live together
    rules: PlacementConfig
    number: int  # tells specs apart where they are keys
    whole: bool  # whether a whole GPU is asked for: no size at all, or all of it
    picky: bool  # whether the claim names GPUs that may or may not serve it
    step: int = 0  # which of the larger profiles of each model serves instead, counted from 1; 0: the asked one
    _shapes: dict[str, Shape] = field(default_factory=dict)
    _larger: dict[str, tuple[Profile, ...]] = field(default_factory=dict)
    _shares: dict[tuple[str, str], Share | WaitReason] = field(default_factory=dict)
    _homes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _snug: dict[str, bool] = field(default_factory=dict)

    def admits(self, gpu: Gpu) -> WaitReason | None:
        """Why the claim excludes this product, or cannot use it; None when it can. UUIDs are not checked."""
        if self.claim.shares_percent is not None and has_unknown_memory(gpu.model, mig=gpu.mig):
            return WaitReason.GPU_MEMORY_UNKNOWN
        only, name = self.claim.only, gpu.report.model
        is_other = bool(only.models) and not any(is_meant(name, part) for part in only.models)
        is_excluded = any(is_meant(name, part) for part in only.not_models)
        return WaitReason.GPU_MODEL_MISMATCH if is_other or is_excluded else None

    def excludes(self, gpu: Gpu) -> bool:
        only = self.claim.only
        uuid = gpu.report.uuid
        return bool(only.uuids and uuid not in only.uuids) or uuid in only.not_uuids

    def shape_on(self, gpu: Gpu) -> Shape:
        """The profile that serves the claim on this kind of GPU, or the whole GPU, or why neither does."""
        shape = self._shapes.get(gpu.kind)
        if shape is None:
            shape = self._shapes[gpu.kind] = self.admits(gpu) or self._in_layout(gpu, self._shape(gpu))
        return shape

    def _shape(self, gpu: Gpu) -> Shape:
        if self.step == 0:
            return shape_for(gpu.model, self.claim, self.rules, mig=gpu.mig)
        larger = self.larger_on(gpu)
        return larger[self.step - 1] if self.step <= len(larger) else WaitReason.GPU_NO_SUCH_PROFILE

    def _in_layout(self, gpu: Gpu, shape: Shape) -> Shape:
        """In a fixed layout only existing instances count; a size is rounded up to the smallest one."""
        if gpu.layout is None or not isinstance(shape, Profile):
            return shape
        there = {instance.profile for instance in gpu.layout}
        if shape.name not in there and self.step == 0:
            shape = shape_for(gpu.model, self.claim, self.rules, mig=True, among=there)
        return shape if isinstance(shape, Profile) and shape.name in there else WaitReason.GPU_NOT_IN_LAYOUT

    def profile_on(self, gpu: Gpu) -> str | None:
        """The name of the profile that serves it exclusively (WHOLE_GPU for a whole GPU); None where none does."""
        shape = self.shape_on(gpu)
        if isinstance(shape, WaitReason):
            return None
        return shape.name if isinstance(shape, Profile) else WHOLE_GPU

    def memory_on(self, gpu: Gpu) -> int:
        """The memory in MiB of the exclusive device on this kind of GPU; 0 where none serves."""
        shape = self.shape_on(gpu)
        if isinstance(shape, WaitReason):
            return 0
        return shape.memory_mib if isinstance(shape, Profile) else gpu.memory_mib

    def larger_on(self, gpu: Gpu) -> tuple[Profile, ...]:
        """The profiles that may serve on this kind of GPU instead of the asked one, those that waste least first."""
        larger = self._larger.get(gpu.kind)
        if larger is None:
            possible = gpu.mig and self.admits(gpu) is None
            larger = larger_for(gpu.model, self.claim, self.rules) if possible else ()
            self._larger[gpu.kind] = larger
        return larger

    def is_snug(self, gpu: Gpu) -> bool:
        snug = self._snug.get(gpu.kind)
        if snug is None:
            snug = self._snug[gpu.kind] = self._waste_percent(gpu) <= self.rules.auto_waste_percent
        return snug

    def _waste_percent(self, gpu: Gpu) -> int:
        shape, claim = self.shape_on(gpu), self.claim
        if not isinstance(shape, Profile):
            return 0 if shape is WHOLE else 100
        largest = gpu.model.largest
        wastes = [100]
        if claim.memory_mib is not None:
            wastes.append((shape.memory_mib - claim.memory_mib) * 100 // shape.memory_mib)
        if claim.memory_percentage is not None:
            has = max(1, gpu.model.memory_percent(shape))
            wastes.append((has - claim.memory_percentage) * 100 // has)
        if claim.sm_count is not None:
            wastes.append((shape.multiprocessors - claim.sm_count) * 100 // shape.multiprocessors)
        if claim.sm_percentage is not None:
            asked = claim.sm_percentage * largest.multiprocessors
            wastes.append((100 * shape.multiprocessors - asked) // shape.multiprocessors)
        return 0 if claim.profile is not None or self.whole else min(wastes)

    def share_on(self, gpu: Gpu, mode: str) -> Share | WaitReason:
        key = (mode, gpu.kind)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = self.admits(gpu) or self._share(gpu, mode)
        return share

    def _share(self, gpu: Gpu, mode: str) -> Share | WaitReason:
        claim = self.claim
        uid = claim.uid if claim.uid is not None else self.rules.assumed_uid
        if uid is None or (gpu.mig and not gpu.model.profiles):
            return WaitReason.GPU_MODE_NOT_FIT
        if has_unknown_memory(gpu.model, mig=gpu.mig):
            return WaitReason.GPU_MEMORY_UNKNOWN  # every share has a part of it
        memory_mib = claim.memory_mib or 0
        if claim.memory_percentage is not None:
            memory_mib = max(memory_mib, percent_mib(gpu, claim.memory_percentage))
        elif claim.memory_mib is None:  # a share that names no memory has as much of it as of the SMs
            memory_mib = percent_mib(gpu, claim.sm_partition or 100)
        memory_mib = max(1, memory_mib)
        if mode == "mps":
            return Share(mode="mps", uid=uid, memory_mib=memory_mib)
        least, most = claim.quota_request_permille, claim.quota_limit_permille
        whole = Share(mode="fractional", uid=uid, memory_mib=memory_mib, sm_partition=claim.sm_partition or 100)
        return msgspec.structs.replace(whole, quota_request_permille=least, quota_limit_permille=most)

    def offers_on(self, gpu: Gpu, overcommit_percent: int) -> Iterator[tuple[Mode, str, Share | None]]:
        """The devices of this kind of GPU that may serve it, by mode, the best first: a profile (WHOLE_GPU for a whole
        GPU), and the share for which it is made a home."""
        for mode in self.claim.modes:
            if mode == "exclusive":
                profile = self.profile_on(gpu)
                if profile is not None:
                    yield mode, profile, None
            elif not isinstance(share := self.share_on(gpu, mode), WaitReason):
                homes = self.home_profiles(gpu, share, overcommit_percent) if gpu.mig else (WHOLE_GPU,)
                yield from ((mode, home, share) for home in homes)

    def part_of(self, gpu: Gpu, percent: int) -> Share:
        uid = self.claim.uid if self.claim.uid is not None else self.rules.assumed_uid
        return Share(mode="fractional", uid=uid or 0, memory_mib=gpu.memory_mib * percent // 100, sm_partition=percent)

    def home_profiles(self, gpu: Gpu, share: Share, overcommit_percent: int) -> tuple[str, ...]:
        """The profiles of which an instance may be made as a home for the share, best first."""
        key = f"{share.mode} {gpu.kind} {overcommit_percent}"
        homes = self._homes.get(key)
        if homes is None:
            homes = self._homes[key] = _home_profiles(gpu, share, overcommit_percent, self.rules)
        return homes


def _home_profiles(gpu: Gpu, share: Share, overcommit_percent: int, rules: PlacementConfig) -> tuple[str, ...]:
    """Smallest first, but those last that would hold far fewer such shares than the whole GPU."""
    holding: list[tuple[int, tuple[int, int, int, str], Profile]] = []
    empty = gpu.table.creatable(gpu.table.empty)
    for profile in gpu.model.profiles:
        if ProfileName.parse(profile.name).attributes or not rules.allows(gpu.model, profile.name):
            continue
        if share.memory_mib > profile.memory_mib:
            continue
        size = gpu.home_size(profile.name, taking_turns=False, overcommit_percent=overcommit_percent)
        each = profile.memory_mib * (overcommit_percent if share.mode == "mps" else 100) // 100 // share.memory_mib
        if share.mode == "fractional":
            each = min(each, 100 // max(1, width_percent(share.sm_partition, size.sms, size.gpu_sms)))
        each = min(each, size.tenants_max)
        if each > 0 and empty[profile.name]:
            holding.append((each * empty[profile.name], _smallest_first(profile), profile))
    most = max((count for count, _, _ in holding), default=0)
    dense = [each for each in holding if each[0] * 100 >= most * (100 - _HOME_MAY_LOSE_PERCENT)]
    sparse = [each for each in holding if each not in dense]
    return tuple(profile.name for part in (dense, sparse) for _, _, profile in sorted(part, key=lambda each: each[1]))


class DeviceSpecs:
    """The computed specs, so that equal claims share the work."""

    def __init__(self, rules: PlacementConfig) -> None:
        self._rules = rules
        self._known: dict[tuple[Claim, TrustDomain, int], DeviceSpec] = {}
        self._of: dict[tuple[Claim, str, int], DeviceSpec] = {}
        self._numbered = 0

    def of(self, claim: Claim, namespace: str, step: int = 0) -> DeviceSpec:
        """What each device of the claim has to be; with a step, the larger one that serves instead."""
        spec = self._of.get((claim, namespace, step))
        if spec is None:
            if len(self._of) >= _REMEMBERED_MAX:
                self._of.clear()
            spec = self._of[claim, namespace, step] = self._plain(claim, namespace, step)
        return spec

    def _plain(self, claim: Claim, namespace: str, step: int) -> DeviceSpec:
        """The same for claims that differ only in what does not concern one device."""
        plain = msgspec.structs.replace(claim, container="", gpus=1)
        shared = claim.modes != ("exclusive",) or claim.shares_percent is not None
        uid = claim.uid if claim.uid is not None else self._rules.assumed_uid
        domain = (namespace, uid or 0) if shared else ("", 0)
        spec = self._known.get((plain, domain, step))
        if spec is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._numbered += 1
            picky = bool(plain.only.uuids or plain.only.not_uuids)
            spec = DeviceSpec(plain, domain, self._rules, self._numbered, is_whole(plain), picky, step)
            self._known[plain, domain, step] = spec
        return spec


def percent_mib(gpu: Gpu, percent: int) -> int:
    """So many percent of a GPU's memory in MiB, rounded down: as many shares of 1/n as it takes fit, and no more. With
    MIG never more than an instance of that part has: two halves live on two halves of the GPU."""
    exact = gpu.memory_mib * percent // 100
    if not gpu.mig:
        return exact
    parts = [each.memory_mib for each in gpu.model.profiles if gpu.model.memory_percent(each) >= percent]
    return min((exact, *parts))


def shape_for(
    model: GpuModel, claim: Claim, rules: PlacementConfig, *, mig: bool, among: Collection[str] | None = None
) -> Shape:
    """The profile of `model` that serves the claim exclusively (or WHOLE), or why none does; a size by one `among`."""
    if not mig and not is_whole(claim):
        by_memory = claim.memory_mib is not None or claim.memory_percentage is not None
        is_unknown = by_memory and has_unknown_memory(model, mig=False)
        return WaitReason.GPU_MEMORY_UNKNOWN if is_unknown else WaitReason.GPU_MODE_NOT_FIT
    if not mig:
        return WHOLE
    if not model.profiles:
        return WaitReason.GPU_MODE_NOT_FIT
    if claim.profile is not None:
        profile = model.profile(claim.profile)
        fits = profile is not None and _is_enough(model, profile, claim) and rules.allows(model, profile.name)
        return profile if fits and profile is not None else WaitReason.GPU_NO_SUCH_PROFILE
    if is_whole(claim):
        return model.largest if rules.allows(model, model.largest.name) else WaitReason.GPU_NO_SUCH_PROFILE
    enough = [each for each in rules.choosable(model, claim) if _is_enough(model, each, claim)]
    if among is not None:
        enough = [profile for profile in enough if profile.name in among]
    if not enough:
        return WaitReason.GPU_NO_SUCH_PROFILE
    if claim.known_geometries:  # memory, then compute slices: as HAMi's users expect its geometries to be tried
        return min(enough, key=lambda each: (each.memory_mib, *_smallest_first(each)))
    return min(enough, key=_smallest_first)


def has_unknown_memory(model: GpuModel, *, mig: bool) -> bool:
    """Whether the driver does not report the memory of such a GPU, whose name is known."""
    return not mig and model.memory_mib == 0 and bool(model.product_names[0])


def larger_for(model: GpuModel, claim: Claim, rules: PlacementConfig) -> tuple[Profile, ...]:
    """The profiles of a model that may serve a claim instead of the asked one, those that waste least first."""
    if not model.profiles or not has_substitutes(claim):
        return ()
    exact = shape_for(model, claim, rules, mig=True)
    found = larger_profiles(model, claim, exact if isinstance(exact, Profile) else None, rules)
    return tuple(profile for profile in found if _is_enough(model, profile, claim))


def _is_enough(model: GpuModel, profile: Profile, claim: Claim) -> bool:
    sms = profile.multiprocessors
    has_and_needs = (
        (profile.memory_mib, claim.memory_mib),
        (sms, claim.sm_count),
        (model.memory_percent(profile), claim.memory_percentage),
        (sms * 100, claim.sm_percentage and claim.sm_percentage * model.largest.multiprocessors),
    )
    return all(needs is None or has >= needs for has, needs in has_and_needs)


def _smallest_first(profile: Profile) -> tuple[int, int, int, str]:
    """Compute slices, then memory; plain profiles before those with attributes (`+me`), which are scarce."""
    attributes = len(ProfileName.parse(profile.name).attributes)
    return (profile.compute_slices, profile.memory_mib, attributes, profile.name)
