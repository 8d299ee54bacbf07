"""
GPUs whose layout an administrator fixed: existing instances are handed out, none is created or destroyed. Two facts
protect them, and either is enough: `Devices.is_fixed`, and `DeviceRecord.found` after the GPU was returned to Sluice.
"""

from collections.abc import Iterable, Mapping

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import InstanceReport
from sluice_node_agent.core.events import DeviceErrorKind, Holder
from sluice_node_agent.core.instructions import ListHolders
from sluice_node_agent.core.journal_records import DeviceRecord
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey, is_offered

Claims = Mapping[InstanceKey, AllocationId | None]
"""The instances that records name, and their allocations."""
Refusal = tuple[str, str]


def is_kept(place: DevicePlacement, device: DeviceRecord, devices: Devices) -> bool:
    """Whether the instance of a device stays after its tenant."""
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
        return str(DeviceErrorKind.IN_USE), f"{uuid} on {place.gpu} is used by {', '.join(strangers)}"
    found = _instance_for(place, devices, claims)
    if not isinstance(found, InstanceReport):
        return found
    if found.uuid != uuid:
        return str(DeviceErrorKind.NOT_FOUND), f"{uuid} on {place.gpu} went while it was being taken"
    return DeviceRecord(step="intended", gi_id=found.gi_id, uuid=uuid, found=True)


def strangers_of(holders: Iterable[Holder], owner: str = "") -> tuple[str, ...]:
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


def resumed(place: DevicePlacement, device: DeviceRecord, devices: Devices, *, making: bool) -> DeviceRecord:
    """A record of an earlier run: the very same instance exists, or nothing of ours; its users are listed again."""
    if making and device.step != "made":
        return DeviceRecord()
    found = devices.instance(place.gpu, device.gi_id)
    if found is None or not device.uuid:
        return DeviceRecord()
    is_same = (found.profile, found.start, found.size, found.uuid) == (
        place.profile,
        place.start,
        place.size,
        device.uuid,
    )
    return device if is_same else DeviceRecord()


def _instance_for(place: DevicePlacement, devices: Devices, claims: Claims) -> InstanceReport | Refusal:
    """The instance that serves a place. The hardware would let two tenants have it; only `claims` prevents that."""
    found, where = devices.instance_at(place), f"{place.gpu} {place.start}:{place.size}"
    if found is None:
        cure = "its administrator has to make one"
        return str(DeviceErrorKind.NOT_FOUND), f"{where}: this GPU's fixed layout has no {place.profile} there; {cure}"
    if (place.gpu, found.gi_id) in claims:
        owner = claims[place.gpu, found.gi_id] or "a home without tenants"
        return str(DeviceErrorKind.IN_USE), f"{where}: the {place.profile} there is {owner}'s still"
    if not is_offered(found):
        why = devices.why_unusable(found)
        return str(DeviceErrorKind.NOT_SUPPORTED), f"{where}: the {place.profile} there cannot be had: {why}"
    return found
