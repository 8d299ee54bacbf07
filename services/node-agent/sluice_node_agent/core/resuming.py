"""
Where to go on after a crash, a reboot, or the loss of the journal: records held against the devices as they are.

Nothing is done here: a record is only brought in line with what is there, so that the next step is the right one.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from sluice.contracts.messages import Booking, Grant, Revoke
from sluice_node_agent.core.devices import Devices, InstanceKey
from sluice_node_agent.core.making import to_make_again
from sluice_node_agent.core.records import DeviceRecord, SliceRecord
from sluice_node_agent.core.work import pairs, with_device, without_instance


def resume(record: SliceRecord, devices: Devices, boot_id: str, claimed: dict[InstanceKey, None]) -> SliceRecord:
    """A record of an earlier life, in line with the devices. `claimed` are instances that belong to other records."""
    if record.boot_id and record.boot_id != boot_id:
        return _after_reboot(record)
    for number, grant, device in pairs(record):
        if grant.profile is None or not devices.healthy(grant.gpu):
            continue
        if device.gi_id is None:
            found = devices.instance_at(grant) if device.step == "intended" else None
            if found is not None and (grant.gpu, found.gi_id) not in claimed:
                # The intent was saved and the result was not: at exactly this place, it is ours.
                record = with_device(record, number, gi_id=found.gi_id, uuid=found.uuid)
            continue
        if record.phase == "ready":
            continue  # what vanished from a ready slice is looked for all the time (`making.lost_devices`)
        found = devices.instance(grant.gpu, device.gi_id)
        if found is None or (found.profile, found.start, found.size) != (grant.profile, grant.start, grant.size):
            step = "planned" if record.phase != "making" else "intended"
            record = with_device(record, number, step=step, gi_id=None, uuid="")
        elif not device.uuid or not found.uuid:
            step = device.step if found.uuid else "intended"
            record = with_device(record, number, step=step, uuid=found.uuid)
        elif device.uuid != found.uuid:
            record = without_instance(record, number)  # another compute instance: somebody else's by now
    return record


def claims_of(records: Iterable[SliceRecord]) -> dict[InstanceKey, None]:
    """All instances that records name."""
    return {
        (grant.gpu, device.gi_id): None
        for record in records
        for _, grant, device in pairs(record)
        if device.gi_id is not None
    }


def take_over(
    entry: Grant | Revoke, devices: Devices, unclaimed: dict[InstanceKey, str], tickets: Iterable[str], boot_id: str
) -> SliceRecord:
    """
    The record for an order that the journal does not know.

    After the journal was lost, an instance at exactly a granted place is the grant's (`unclaimed` are the instances
    found then, with their UUIDs), and so is the one ticket that was made for the allocation. Otherwise there is
    nothing yet.
    """
    booking = entry.booking
    found = tuple(_unclaimed_at(booking, number, devices, unclaimed) for number in range(len(booking.devices)))
    theirs = tuple(ticket for ticket in tickets if ticket.startswith(f"{booking.allocation}."))
    complete = all(d.uuid or grant.profile is None for d, grant in zip(found, booking.devices, strict=True))
    kept = theirs[0] if len(theirs) == 1 and complete and isinstance(entry, Grant) else ""
    record = SliceRecord(
        booking=booking,
        revision=entry.revision,
        phase="planned",
        devices=found,
        boot_id=boot_id if any(d.gi_id is not None for d in found) or theirs else "",
        ticket=kept,
        stale_tickets=() if kept else theirs,
    )
    if isinstance(entry, Grant):
        return replace(record, after=entry.after)
    never = not record.boot_id
    return replace(record, phase="unmaking", cause="never made" if never else entry.cause)


# -- inside -------------------------------------------------------------------------------------------------------


def _after_reboot(record: SliceRecord) -> SliceRecord:
    """No instance survives a reboot, and no process. A standing grant is made again, under a new ticket."""
    record = replace(record, devices=tuple(DeviceRecord() for _ in record.devices))
    if record.phase in {"making", "ready", "degraded"}:
        return to_make_again(record)
    return record


def _unclaimed_at(booking: Booking, number: int, devices: Devices, unclaimed: dict[InstanceKey, str]) -> DeviceRecord:
    grant = booking.devices[number]
    found = devices.instance_at(grant) if grant.profile is not None else None
    if found is None or unclaimed.get((grant.gpu, found.gi_id)) != found.uuid:
        return DeviceRecord()
    return DeviceRecord(step="intended", gi_id=found.gi_id, uuid=found.uuid)
