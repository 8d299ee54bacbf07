"""One MIG instance, of a slice or of a home: its next step, and what a result means for its `DeviceRecord`. On a GPU
whose layout an administrator fixed, existing instances are handed out, none is created or destroyed. Two facts protect
them, and either is enough: `Devices.is_fixed`, and `DeviceRecord.found` after the GPU was returned to Sluice."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import InstanceReport
from sluice_node_agent.core import events
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstruction,
    ListHolders,
    OwnInstruction,
    VerifyInstance,
)
from sluice_node_agent.core.journal_records import DeviceRecord
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey, is_offered

Claims = Mapping[InstanceKey, AllocationId | None]
"""The instances that records name, and their allocations."""
Refusal = tuple[str, str]


def is_kept(place: DevicePlacement, device: DeviceRecord, devices: Devices) -> bool:
    return place.profile is not None and (device.found or devices.is_fixed(place.gpu))


def is_to_be_taken(place: DevicePlacement, device: DeviceRecord, devices: Devices) -> bool:
    """Whether a device is served by an existing instance, and none was taken for it yet."""
    return place.profile is not None and devices.is_fixed(place.gpu) and not device.uuid


def step_to_take(place: DevicePlacement, devices: Devices, claims: Claims, token: int) -> ListHolders | Refusal:
    """The first step of taking an instance: list its users. Or why it cannot be had."""
    found = _instance_for(place, devices, claims)
    return ListHolders(token, place.gpu, found.uuid) if isinstance(found, InstanceReport) else found


def taken(
    place: DevicePlacement, uuid: str, strangers: tuple[str, ...], devices: Devices, claims: Claims
) -> DeviceRecord | Refusal:
    """The record of an instance after its users were listed; it is verified once that is saved. Or why it failed."""
    if strangers:
        return str(events.DeviceErrorKind.IN_USE), f"{uuid} on {place.gpu} is used by {', '.join(strangers)}"
    found = _instance_for(place, devices, claims)
    if not isinstance(found, InstanceReport):
        return found
    if found.uuid != uuid:
        return str(events.DeviceErrorKind.NOT_FOUND), f"{uuid} on {place.gpu} went while it was being taken"
    return DeviceRecord(step="intended", gi_id=found.gi_id, uuid=uuid, found=True)


def strangers_of(holders: Iterable[events.Holder], owner: str = "") -> tuple[str, ...]:
    """Processes on a device that are not of the given pod. Those that only have its files open do not count."""
    return tuple(
        f"{each.name or 'process'} {each.pid}"
        for each in holders
        if each.kind != "file" and not (owner and each.owner == owner)
    )


def found_again(place: DevicePlacement, devices: Devices, claims: Claims) -> DeviceRecord:
    """The instance at a place that was handed out before the journal was lost; none where it cannot be that one."""
    found = devices.instance_at(place)
    if found is None or not found.uuid or (place.gpu, found.gi_id) in claims:
        return DeviceRecord()
    return DeviceRecord(step="intended", gi_id=found.gi_id, uuid=found.uuid, found=True)


def resumed_kept(place: DevicePlacement, device: DeviceRecord, devices: Devices, *, making: bool) -> DeviceRecord:
    """A record of an earlier run: the very same instance exists, or nothing of ours; its users are listed again."""
    if making and device.step != "made":
        return DeviceRecord()
    found = devices.instance(place.gpu, device.gi_id)
    if found is None or not device.uuid:
        return DeviceRecord()
    return device if found.uuid == device.uuid and is_at(place, device, devices) else DeviceRecord()


def _instance_for(place: DevicePlacement, devices: Devices, claims: Claims) -> InstanceReport | Refusal:
    """The instance that serves a place. The hardware would let two tenants have it; only `claims` prevents that."""
    found, where = devices.instance_at(place), f"{place.gpu} {place.start}:{place.size}"
    if found is None:
        cure = "its administrator has to make one"
        return str(
            events.DeviceErrorKind.NOT_FOUND
        ), f"{where}: this GPU's fixed layout has no {place.profile} there; {cure}"
    if (place.gpu, found.gi_id) in claims:
        owner = claims[place.gpu, found.gi_id] or "a home without tenants"
        return str(events.DeviceErrorKind.IN_USE), f"{where}: the {place.profile} there is {owner}'s still"
    if not is_offered(found):
        why = devices.why_unusable(found)
        return str(events.DeviceErrorKind.NOT_SUPPORTED), f"{where}: the {place.profile} there cannot be had: {why}"
    return found


NO_DEVICE = DeviceRecord()


def why_impossible(place: DevicePlacement, devices: Devices) -> tuple[str, str] | None:
    """Why this can never be created here: error and message."""
    report = devices.reports.get(place.gpu)
    if report is None:
        return str(events.DeviceErrorKind.GPU_LOST), f"this node has no GPU {place.gpu}"
    if place.profile is None:
        whole = "MIG is enabled, so it cannot be granted whole" if report.mig_enabled else None
        return (str(events.DeviceErrorKind.NOT_SUPPORTED), f"{place.gpu}: {whole}") if whole else None
    if devices.is_unknown(place.gpu):
        return str(events.DeviceErrorKind.GPU_LOST), report.health_message
    if not report.mig_enabled:
        return str(events.DeviceErrorKind.NOT_SUPPORTED), f"{place.gpu}: MIG is not enabled"
    if devices.profile(place) is None:
        return str(
            events.DeviceErrorKind.INVALID_ARGUMENT
        ), f"{place.gpu} ({report.model}) has no profile {place.profile!r}"
    return None


def step_to_make(place: DevicePlacement, device: DeviceRecord, devices: Devices, token: int) -> GpuInstruction:
    """The next step of an announced instance; the last one reads it back. The GPU has its profile."""
    profile = devices.profile(place)
    assert profile is not None
    if device.gi_id is None:
        return CreateGpuInstance(token, place.gpu, profile.profile_id, place.start, place.size)
    if not device.uuid:
        return CreateComputeInstance(token, place.gpu, device.gi_id)
    return VerifyInstance(token, place.gpu, device.gi_id, profile.profile_id, place.start, place.size, device.uuid)


def made(device: DeviceRecord, result: events.Result) -> DeviceRecord:
    match result:
        case events.GpuInstanceCreated(gi_id=gi_id):
            return replace(device, gi_id=gi_id)
        case events.ComputeInstanceCreated(uuid=uuid):
            return replace(device, uuid=uuid)
        case events.InstanceVerified():
            return replace(device, step="made")
    raise AssertionError(f"{result} answers no step of making an instance")


def after_refusal(device: DeviceRecord, sent: OwnInstruction, kind: events.DeviceErrorKind) -> DeviceRecord:
    """What exists after a refused step: a refused creation leaves nothing; one that differs may be ours."""
    is_gone = kind is events.DeviceErrorKind.NOT_FOUND and isinstance(sent, (CreateComputeInstance, VerifyInstance))
    if isinstance(sent, CreateGpuInstance) or is_gone:
        return NO_DEVICE
    return device


def step_to_unmake(place: DevicePlacement, device: DeviceRecord, token: int) -> GpuInstruction | None:
    if device.gi_id is None:
        return None
    if device.uuid:
        return DestroyComputeInstance(token, place.gpu, device.gi_id, device.uuid)
    return DestroyGpuInstance(token, place.gpu, device.gi_id, place.start, place.size)


def unmade(device: DeviceRecord, sent: OwnInstruction, result: events.Result) -> DeviceRecord | str:
    match result:
        case events.ComputeInstanceDestroyed():
            return replace(device, uuid="")
        case events.GpuInstanceDestroyed():
            return NO_DEVICE
        case events.DeviceRefused(kind=events.DeviceErrorKind.NOT_FOUND) if isinstance(sent, DestroyComputeInstance):
            return replace(device, uuid="")
        case events.DeviceRefused(kind=events.DeviceErrorKind.NOT_FOUND | events.DeviceErrorKind.DIFFERENT):
            return NO_DEVICE  # what exists there, if anything, is not ours
        case events.DeviceRefused(kind=kind, message=message):
            return f"{kind}: {message}"
    raise AssertionError(f"{result} answers no step of unmaking an instance")


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
    """A record of an earlier run, in line with a GPU that answers. `claimed` are other records' instances. If only the
    intent was saved, an instance at exactly this place that may be ours is, unless it has a compute instance: ours gets
    one only after its id is in the journal (`is_another`)."""
    if is_kept(place, device, devices):
        return resumed_kept(place, device, devices, making=making)
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
