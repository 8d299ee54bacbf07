"""MIG through NVML: profiles, placements and instances of one device handle; NVML's errors are raised unchanged. Traps
(nvml.h, nvidia-ml-py 13): a profile's id is not the number it is queried by; a GPU instance's id does not determine its
placement; placements are passed by reference (by value the interpreter crashes); the index of MIG devices has holes; a
GPU instance without compute instance is in no list of devices."""

from collections.abc import Callable, Mapping
from ctypes import Array, byref, c_uint
from typing import Any, NamedTuple

import msgspec
import pynvml  # type: ignore[import-untyped]

from sluice.contracts.messages import InstanceReport, PlacementReport, ProfileReport
from sluice.mig.profile_name import ProfileName, ProfileNameError
from sluice_node_agent.device.nvml.errors import known_or, older, told_or
from sluice_node_agent.device.port import InvalidArgumentError, NotFoundError, NotSupportedError

_PREFIX = "MIG "
_GIB = 1024**3
_MIB = 1024**2

SUFFIXES = {
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}
"""By NVML's profile enum (nvml.h, NVML_GPU_INSTANCE_PROFILE_*): REV1, GFX, NO_ME and ALL_ME. REV2 has none."""


def profile_name(told: str, *, enum: int, compute_slices: int, memory_mib: int, total_bytes: int) -> str:
    """The driver's name of the profile, without `MIG `, or the one that follows from its size."""
    name = told.strip().removeprefix(_PREFIX)
    try:
        return str(ProfileName.parse(name))
    except ProfileNameError:
        return built_name(enum=enum, compute_slices=compute_slices, memory_mib=memory_mib, total_bytes=total_bytes)


def built_name(*, enum: int, compute_slices: int, memory_mib: int, total_bytes: int) -> str:
    """The name that follows from a profile's size: `1g.5gb+me`. `total_bytes` is the whole GPU's. Integers only."""
    eighths = -(-memory_mib * _MIB * 8 // total_bytes)
    total_gib = -(-total_bytes // _GIB)
    gigabytes = (eighths * total_gib * 2 + 8) // 16  # rounded to the nearest, halves up
    return f"{compute_slices}g.{gigabytes}gb{SUFFIXES.get(enum, '')}"


Handle = Any

_ABSENT = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT})
"""Codes of a profile query for a profile that this GPU (3) or this driver (2) does not have."""
_INSTANCES_MAX = 64
"""No GPU has as many instances of one profile (at most 7 on the GPUs of 2026)."""
MIG_PREFIX = "MIG-"


class Mode(NamedTuple):
    """MIG mode now, and after the next reset."""

    now: bool
    after_reset: bool


class ComputeInstance(NamedTuple):
    """A compute instance. `ci_id` is unique in its GPU instance only; `uuid` is its MIG device's, if it has one."""

    ci_id: int
    handle: Handle
    uuid: str
    profile_id: int


class MigDevice(NamedTuple):
    """A MIG device: its handle, and the ids of its instances."""

    handle: Handle
    gi_id: int
    ci_id: int


def mode(device: Handle) -> Mode:
    """MIG mode of a GPU; off and off where it has no MIG."""
    try:
        now, after_reset = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError as error:
        # Any other error does not mean off: the GPU's instances would count as gone.
        if error.value not in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}:
            raise
        return Mode(now=False, after_reset=False)
    return Mode(now == pynvml.NVML_DEVICE_MIG_ENABLE, after_reset == pynvml.NVML_DEVICE_MIG_ENABLE)


def profiles(device: Handle, total_bytes: int) -> tuple[ProfileReport, ...]:
    """All GPU instance profiles with their placements, smallest first; empty without MIG. In the catalog's order, not
    by NVML's enum: it is one of the facts that identify a model (`sluice.contracts.gpu_reports`). `total_bytes`: the
    GPU's."""
    found: dict[int, ProfileReport] = {}
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device, enum)
        if info is None or info.id in found:
            continue
        found[info.id] = ProfileReport(
            name=profile_name(
                known_or("", getattr, info, "name", ""),  # pynvml decodes it on access
                enum=enum,
                compute_slices=info.sliceCount,
                memory_mib=info.memorySizeMB,
                total_bytes=total_bytes,
            ),
            profile_id=info.id,
            compute_slices=info.sliceCount,
            memory_mib=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpegs=info.jpegCount,
            ofas=info.ofaCount,
            max_instances=info.instanceCount,
            placements=_placements(device, info.id),
        )
    return tuple(sorted(found.values(), key=lambda each: (each.compute_slices, each.memory_mib, each.profile_id)))


def mig_uuids(device: Handle) -> dict[tuple[int, int], str]:
    """UUIDs of all MIG devices of a GPU by (GPU instance, compute instance)."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            ids = (pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig))
            found[ids] = str(pynvml.nvmlDeviceGetUUID(mig))
        except pynvml.NVMLError as error:
            # A hole, or a device that was destroyed meanwhile.
            if error.value not in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
                raise
    return found


def instances(device: Handle, known: tuple[ProfileReport, ...], *, fixed: bool) -> tuple[InstanceReport, ...]:
    """All GPU instances by placement, also those without compute instance. Needs the right to manage MIG. On a `fixed`
    layout, instances that cannot be assigned get the reason."""
    uuids = _lowest(mig_uuids(device))
    names = {profile.profile_id: profile.name for profile in known}
    found = []
    for profile in known:
        for handle in _listed(pynvml.nvmlDeviceGetGpuInstances, device, profile.profile_id, pynvml.c_nvmlGpuInstance_t):
            info = pynvml.nvmlGpuInstanceGetInfo(handle)
            report = _report(info, names, uuids)
            if fixed and report.uuid:
                report = msgspec.structs.replace(report, unusable=_why_not_whole(device, handle, info.id, known))
            found.append(report)
    return tuple(sorted(found, key=lambda instance: (instance.start, instance.gi_id)))


def gpu_instance(device: Handle, gi_id: int) -> Handle:
    """A GPU instance's handle. Raises NotFoundError also when MIG is off, where NVML returns "not supported"."""
    try:
        return pynvml.nvmlDeviceGetGpuInstanceById(device, gi_id)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED and not mode(device).now:
            raise NotFoundError(f"there is no GPU instance {gi_id}: MIG mode is off") from None
        raise


def instance_at(device: Handle, profile_id: int, start: int, size: int) -> int | None:
    if not mode(device).now:
        return None
    for handle in _listed(pynvml.nvmlDeviceGetGpuInstances, device, profile_id, pynvml.c_nvmlGpuInstance_t):
        info = pynvml.nvmlGpuInstanceGetInfo(handle)
        if (info.placement.start, info.placement.size) == (start, size):
            return int(info.id)
    return None


def mig_device(device: Handle, uuid: str) -> MigDevice | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        if pynvml.nvmlDeviceGetUUID(parent) != pynvml.nvmlDeviceGetUUID(device):
            return None
        ids = (pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle))
    except pynvml.NVMLError as error:
        if error.value in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            return None
        raise
    return MigDevice(handle, *ids)


def create_gpu_instance(
    device: Handle, known: tuple[ProfileReport, ...], profile_id: int, start: int, size: int
) -> int:
    """Create at exactly this placement; returns the id, or destroys what has none. Raises InvalidArgumentError for a
    profile or placement that is not listed: NVML's own "insufficient resources" would be retried without end."""
    profile = next((profile for profile in known if profile.profile_id == profile_id), None)
    if profile is None:
        raise InvalidArgumentError(f"the GPU has no GPU instance profile {profile_id}")
    if PlacementReport(start=start, size=size) not in profile.placements:
        raise InvalidArgumentError(f"{profile.name} cannot be placed at {start}:{size} on this GPU")
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    handle = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, byref(placement))
    try:
        return int(pynvml.nvmlGpuInstanceGetInfo(handle).id)
    except pynvml.NVMLError:
        pynvml.nvmlGpuInstanceDestroy(handle)
        raise


def create_compute_instance(device: Handle, gi_id: int, known: tuple[ProfileReport, ...]) -> str:
    """Create the compute instance that fills a GPU instance; returns the MIG device's UUID, or destroys what has none.
    Raises NotSupportedError when no compute instance profile fits."""
    handle = gpu_instance(device, gi_id)
    profile_id = _filling_profile(handle, known)
    made = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, profile_id)
    uuid = ""
    try:
        uuid = _uuid_of(device, gi_id, pynvml.nvmlComputeInstanceGetInfo_v2(made))
    finally:
        if not uuid:
            pynvml.nvmlComputeInstanceDestroy(made)
    if not uuid:
        raise NotSupportedError(
            f"the compute instance made in GPU instance {gi_id} has no MIG device, and was destroyed"
        )
    return uuid


def compute_instances(device: Handle, gpu_instance: Handle, gi_id: int) -> list[ComputeInstance]:
    found = []
    for profile_id in {info.id for info in _compute_profile_infos(gpu_instance)}:
        for handle in _listed(
            pynvml.nvmlGpuInstanceGetComputeInstances, gpu_instance, profile_id, pynvml.c_nvmlComputeInstance_t
        ):
            info = pynvml.nvmlComputeInstanceGetInfo_v2(handle)
            found.append(ComputeInstance(int(info.id), handle, _uuid_of(device, gi_id, info), profile_id))
    return found


def memory_slices(known: tuple[ProfileReport, ...]) -> int:
    """The GPU's units of placement: 8 on most models, 12 on some; 1 without MIG."""
    return max((span.start + span.size for profile in known for span in profile.placements), default=1)


def compute_slices(known: tuple[ProfileReport, ...]) -> int:
    """The compute slices of the largest profile; 1 without MIG."""
    return max((profile.compute_slices for profile in known), default=1)


def _why_not_whole(device: Handle, gpu_instance: Handle, gi_id: int, known: tuple[ProfileReport, ...]) -> str:
    there = compute_instances(device, gpu_instance, gi_id)
    if len(there) > 1:
        return f"it has {len(there)} compute instances; only one that fills it can be handed out"
    if there and there[0].profile_id != _filling_profile(gpu_instance, known):
        return "its compute instance does not fill it: a tenant would get less than the profile says"
    return ""


def _compute_profile_infos(gpu_instance: Handle) -> list[Any]:
    call, shared = (
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
    )
    enums = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    asked = (_profile_info(call, gpu_instance, enum, shared) for enum in enums)
    return [info for info in asked if info is not None]


def _filling_profile(gpu_instance: Handle, known: tuple[ProfileReport, ...]) -> int:
    """The compute instance profile that fills the GPU instance: same slices and SMs, else the largest with as many
    slices. By lookup: the double-memory 1g of Hopper is filled by another profile than the 1g."""
    wanted = pynvml.nvmlGpuInstanceGetInfo(gpu_instance).profileId
    profile = next((profile for profile in known if profile.profile_id == wanted), None)
    if profile is None:
        raise NotSupportedError(f"the GPU does not list GPU instance profile {wanted}")
    fitting = [info for info in _compute_profile_infos(gpu_instance) if info.sliceCount == profile.compute_slices]
    if not fitting:
        raise NotSupportedError(f"no compute instance profile fills a GPU instance {profile.name}")
    best = max(fitting, key=lambda i: (i.multiprocessorCount == profile.multiprocessors, i.multiprocessorCount))
    return int(best.id)


def _uuid_of(device: Handle, gi_id: int, info: Any) -> str:
    """UUID of the MIG device of a compute instance. Drivers put it into `device` of its info, though nvml.h calls that
    the parent; it counts if NVML says that it is a MIG device. Searching all can take ten seconds (NVIDIA's DRA
    driver)."""
    uuid = str(known_or("", pynvml.nvmlDeviceGetUUID, info.device)) if info.device else ""
    return uuid if uuid.startswith(MIG_PREFIX) else mig_uuids(device).get((gi_id, info.id), "")


def _placements(device: Handle, profile_id: int) -> tuple[PlacementReport, ...]:
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, byref(count))
    spans = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, spans, byref(count))
    found = [PlacementReport(start=span.start, size=span.size) for span in spans[: count.value]]
    return tuple(sorted(found, key=lambda span: (span.start, span.size)))


def _listed(call: Callable[..., Any], parent: Handle, profile_id: int, kind: Any) -> list[Handle]:
    """The instances of one profile. The array is long enough for all: some drivers use `count` as its length."""
    array: Array[Any] = (kind * _INSTANCES_MAX)()
    count = c_uint(_INSTANCES_MAX)
    call(parent, profile_id, array, byref(count))
    return [array[number] for number in range(count.value)]


def _report(info: Any, names: Mapping[int, str], uuids: Mapping[int, str]) -> InstanceReport:
    return InstanceReport(
        gi_id=info.id,
        profile=names.get(info.profileId, f"profile {info.profileId}"),
        start=info.placement.start,
        size=info.placement.size,
        uuid=uuids.get(info.id, ""),
    )


def _lowest(uuids: Mapping[tuple[int, int], str]) -> dict[int, str]:
    """The MIG device of each GPU instance's first compute instance. Ours have one; foreign ones may have more."""
    return {gi_id: uuid for (gi_id, _), uuid in sorted(uuids.items(), reverse=True)}


def _profile_info(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a profile query returns, also on drivers that know only its first version; None for an absent profile."""
    return told_or(_ABSENT, None, older, lambda: call(*arguments, version=2), lambda: call(*arguments, version=1))
