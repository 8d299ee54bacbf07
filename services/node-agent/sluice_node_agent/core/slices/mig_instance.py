"""One MIG instance, of a slice or of a home: its next step, and what a result means for its `DeviceRecord`."""

from msgspec.structs import replace

from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    InstanceVerified,
    Result,
)
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstruction,
    OwnInstruction,
    VerifyInstance,
)
from sluice_node_agent.core.journal_records import DeviceRecord
from sluice_node_agent.core.slices import fixed_layouts
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey

NO_DEVICE = DeviceRecord()


def why_impossible(place: DevicePlacement, devices: Devices) -> tuple[str, str] | None:
    """Why this can never be created here: error and message."""
    report = devices.reports.get(place.gpu)
    if report is None:
        return str(DeviceErrorKind.GPU_LOST), f"this node has no GPU {place.gpu}"
    if place.profile is None:
        whole = "MIG is enabled, so it cannot be granted whole" if report.mig_enabled else None
        return (str(DeviceErrorKind.NOT_SUPPORTED), f"{place.gpu}: {whole}") if whole else None
    if devices.is_unknown(place.gpu):
        return str(DeviceErrorKind.GPU_LOST), report.health_message
    if not report.mig_enabled:
        return str(DeviceErrorKind.NOT_SUPPORTED), f"{place.gpu}: MIG is not enabled"
    if devices.profile(place) is None:
        return str(DeviceErrorKind.INVALID_ARGUMENT), f"{place.gpu} ({report.model}) has no profile {place.profile!r}"
    return None


# -- making -------------------------------------------------------------------------------------------------------


def step_to_make(place: DevicePlacement, device: DeviceRecord, devices: Devices, token: int) -> GpuInstruction:
    """The next step of an announced instance; the last one reads it back. The GPU has its profile."""
    profile = devices.profile(place)
    assert profile is not None
    if device.gi_id is None:
        return CreateGpuInstance(token, place.gpu, profile.profile_id, place.start, place.size)
    if not device.uuid:
        return CreateComputeInstance(token, place.gpu, device.gi_id)
    return VerifyInstance(token, place.gpu, device.gi_id, profile.profile_id, place.start, place.size, device.uuid)


def made(device: DeviceRecord, result: Result) -> DeviceRecord:
    """The record after a successful step of creation."""
    match result:
        case GpuInstanceCreated(gi_id=gi_id):
            return replace(device, gi_id=gi_id)
        case ComputeInstanceCreated(uuid=uuid):
            return replace(device, uuid=uuid)
        case InstanceVerified():
            return replace(device, step="made")
    raise AssertionError(f"{result} answers no step of making an instance")


def after_refusal(device: DeviceRecord, sent: OwnInstruction, kind: DeviceErrorKind) -> DeviceRecord:
    """What exists after a refused step: a refused creation leaves nothing; one that differs may be ours."""
    is_gone = kind is DeviceErrorKind.NOT_FOUND and isinstance(sent, (CreateComputeInstance, VerifyInstance))
    if isinstance(sent, CreateGpuInstance) or is_gone:
        return NO_DEVICE
    return device


# -- unmaking -----------------------------------------------------------------------------------------------------


def step_to_unmake(place: DevicePlacement, device: DeviceRecord, token: int) -> GpuInstruction | None:
    """The next step of destroying an instance; None when there is none."""
    if device.gi_id is None:
        return None
    if device.uuid:
        return DestroyComputeInstance(token, place.gpu, device.gi_id, device.uuid)
    return DestroyGpuInstance(token, place.gpu, device.gi_id, place.start, place.size)


def unmade(device: DeviceRecord, sent: OwnInstruction, result: Result) -> DeviceRecord | str:
    """The record after a step of destroying, or why it failed."""
    match result:
        case ComputeInstanceDestroyed():
            return replace(device, uuid="")
        case GpuInstanceDestroyed():
            return NO_DEVICE
        case DeviceRefused(kind=DeviceErrorKind.NOT_FOUND) if isinstance(sent, DestroyComputeInstance):
            return replace(device, uuid="")
        case DeviceRefused(kind=DeviceErrorKind.NOT_FOUND | DeviceErrorKind.DIFFERENT):
            return NO_DEVICE  # what exists there, if anything, is not ours
        case DeviceRefused(kind=kind, message=message):
            return f"{kind}: {message}"
    raise AssertionError(f"{result} answers no step of unmaking an instance")


# -- after a crash ------------------------------------------------------------------------------------------------


def is_at(place: DevicePlacement, device: DeviceRecord, devices: Devices) -> bool:
    """Whether a recorded instance is where it should be, as far as is known."""
    found = devices.instance(place.gpu, device.gi_id)
    return found is not None and (found.profile, found.start, found.size) == (place.profile, place.start, place.size)


def is_elsewhere(place: DevicePlacement, device: DeviceRecord, devices: Devices) -> bool:
    """Whether a recorded id is seen at another place: then it is another instance's by now."""
    return devices.instance(place.gpu, device.gi_id) is not None and not is_at(place, device, devices)


def resumed(
    place: DevicePlacement, device: DeviceRecord, devices: Devices, claimed: dict[InstanceKey, None], *, making: bool
) -> DeviceRecord:
    """
    A record of an earlier run, in line with a GPU that answers. `claimed` are other records' instances. If only the
    intent was saved, an instance at exactly this place that may be ours is, unless it has a compute instance: ours gets
    one only after its id is in the journal (`is_another`).
    """
    if fixed_layouts.is_kept(place, device, devices):
        return fixed_layouts.resumed(place, device, devices, making=making)
    if device.gi_id is None:
        found = devices.instance_at(place) if device.step == "intended" else None
        is_free = found is not None and not found.uuid and (place.gpu, found.gi_id) not in claimed
        if found is not None and is_free and devices.may_be_ours(place):
            return replace(device, gi_id=found.gi_id)
        return device
    found = devices.instance(place.gpu, device.gi_id)
    if found is None or not is_at(place, device, devices):
        return DeviceRecord(step="intended" if making else "planned")
    if not found.uuid:
        return replace(device, step="intended", uuid="")
    if not device.uuid and device.step != "made":
        return replace(device, uuid=found.uuid)  # created, but not yet published
    if device.uuid != found.uuid:
        return NO_DEVICE  # another compute instance: foreign by now
    return device


def is_another(before: DeviceRecord, now: DeviceRecord) -> bool:
    """Whether it names another instance than the journal: saved first, or after a crash what follows is no slice's."""
    return now.gi_id != before.gi_id
