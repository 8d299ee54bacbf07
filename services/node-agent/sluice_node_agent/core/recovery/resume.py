"""Resume after a crash, a reboot, or the loss of the journal: bring records in line with the devices."""

from collections.abc import Iterable

from msgspec.structs import replace

from sluice.contracts.ids import HomeId
from sluice.contracts.messages import Booking, DeviceGrant, Grant, Revoke
from sluice.contracts.ticket_paths import is_ticket_of
from sluice_node_agent.core.journal_records import DeviceRecord, ResizeRecord, SharedDeviceRecord, SliceRecord
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.slices import mig_instance
from sluice_node_agent.core.slices.create import to_make_again
from sluice_node_agent.core.state.devices import DevicePlacement, Devices, InstanceKey
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import home_for, inherited_home, numbered_devices, with_device


def resume(record: SliceRecord, devices: Devices, boot_id: str, claimed: dict[InstanceKey, None]) -> SliceRecord:
    """A record of an earlier run, in line with the devices. `claimed` are instances that belong to other records."""
    if record.boot_id and record.boot_id != boot_id:
        # Nothing survives a reboot. A standing grant is created again, in the size ordered last, under a new ticket.
        record = replace(record, devices=tuple(DeviceRecord() for _ in record.devices), adjusting=None, prepared=())
        return to_make_again(record) if record.phase in {"making", "ready", "degraded"} else record
    for number, grant, device in numbered_devices(record):
        if grant.profile is None or grant.share is not None or not devices.answers(grant.gpu):
            continue
        if record.phase == "ready" and device.gi_id is not None:
            continue  # a ready slice is checked all the time (`create.lost_devices`)
        found = mig_instance.resumed(grant, device, devices, claimed, making=record.phase == "making")
        record = with_device(record, number, found) if found != device else record
    return record


def has_changed(before: SliceRecord, now: SliceRecord) -> bool:
    """Whether a record names other instances than the journal does (`mig_instance.is_another`)."""
    return any(map(mig_instance.is_another, before.devices, now.devices))


def claims_of(
    slices: Iterable[SliceRecord], homes: Iterable[SharedDeviceRecord], devices: Devices
) -> dict[InstanceKey, None]:
    """All instances that records name. The driver reuses ids: one at another place is another instance."""
    named: list[tuple[DevicePlacement, DeviceRecord]] = [
        (grant, device) for record in slices for _, grant, device in numbered_devices(record)
    ]
    named += [(home, home.device) for home in homes]
    return {
        (place.gpu, device.gi_id): None
        for place, device in named
        if device.gi_id is not None and not mig_instance.is_elsewhere(place, device, devices)
    }


def planned_after_others(order: Grant | Revoke) -> SliceRecord:
    """The record for an order that must wait until others are gone: nothing that exists now is its own."""
    is_revoke = isinstance(order, Revoke)
    return SliceRecord(
        booking=order.booking,
        revision=order.revision,
        phase="unmaking" if is_revoke else "planned",
        devices=tuple(DeviceRecord() for _ in order.booking.devices),
        after=order.after,
        evict=isinstance(order, Grant) and order.evict,
        cause="never made" if is_revoke else "",
    )


def can_only_belong_to(booking: Booking, others: list[Booking], state: NodeState, found: Discovered) -> bool:
    """Whether a device exists that can only have been created for this booking, not for `others` that may have devices
    already. That is an instance at exactly its place, or a daemon of its trust domain on a whole GPU. An instance
    without a compute instance proves nothing: it may be warm, from a slice that is gone."""
    theirs = {_place_of(grant) for other in others for grant in other.devices}
    served = {_served_of(other, grant) for other in others for grant in other.devices}
    for grant in booking.devices:
        if grant.profile is not None:
            at = found.instance_at(grant, state.devices)
            if at.uuid and _place_of(grant) not in theirs:
                return True
        elif grant.share is not None and _served_of(booking, grant) not in served:
            daemons = found.homes.values()
            if any((h.device, h.namespace, h.uid) == _served_of(booking, grant) for h in daemons):
                return True
    return False


def adopt_slice(entry: Grant | Revoke, state: NodeState, found: Discovered) -> SliceRecord:
    """The record for an order that the journal does not know. The homes of its shares were adopted before. After a lost
    journal, an instance of ours at exactly a granted place belongs to the grant, and so does the one ticket of the
    allocation: with that it was handed out and may be in use."""
    booking = entry.booking
    theirs = tuple(ticket for ticket in found.tickets if is_ticket_of(ticket, booking.allocation))
    may_live = bool(theirs) or isinstance(entry, Revoke)
    there = tuple(_found_for(booking, grant, state, found, may_live=may_live) for grant in booking.devices)
    pairs = list(zip(there, booking.devices, strict=True))
    complete = all(device.uuid or _is_there_anyway(grant, state) for device, grant in pairs)
    kept = theirs[0] if len(theirs) == 1 and complete and isinstance(entry, Grant) else ""
    if kept:
        there = tuple(_handed_out(device, grant, state) for device, grant in pairs)
    record = SliceRecord(
        booking=booking,
        revision=entry.revision,
        phase="planned",
        devices=there,
        boot_id=state.boot_id if theirs or any(device.uuid or device.gi_id is not None for device in there) else "",
        ticket=kept,
        stale_tickets=() if kept else theirs,
        lost=bool(kept),
    )
    if isinstance(entry, Grant):
        smaller = ResizeRecord(counts=entry.counts) if entry.counts and _may_be_used(record, state) else None
        return replace(record, after=entry.after, evict=entry.evict, adjusting=smaller)
    never = not record.boot_id
    return replace(record, phase="unmaking", cause="never made" if never else entry.cause)


def as_lived_in(record: SliceRecord) -> SliceRecord:
    """What was adopted of a slice that the ledger calls ready: what exists was handed out, and stays until a Revoke."""
    there = tuple(replace(device, step="made") if device.uuid else device for device in record.devices)
    return replace(record, devices=there, lost=True)


def adopt_shared_device(
    booking: Booking, grant: DeviceGrant, state: NodeState, found: Discovered, *, name: HomeId
) -> SharedDeviceRecord | None:
    """The record of a home that the journal does not know; None when nothing of it exists: no instance at exactly its
    place, no daemon of this device and trust domain, no whole GPU set to serve one. `name` is for a home without a
    daemon."""
    assert grant.share is not None
    is_fixed = grant.profile is not None and state.devices.is_fixed(grant.gpu)
    if is_fixed:
        at = mig_instance.found_again(grant, state.devices, state.claims())
    else:
        at = found.instance_at(grant, state.devices)
    uuid = at.uuid if grant.profile is not None else str(grant.gpu)
    domain = (booking.namespace, grant.share.uid)
    served = [h for h in found.homes.values() if (h.gpu, h.device) == (grant.gpu, uuid)]
    daemon = next((h for h in served if (h.namespace, h.uid) == domain), None)
    if daemon is None and any(h.pid for h in served):
        return None  # the home of others, which it is set for
    is_set = grant.profile is None and grant.gpu in found.aside
    if daemon is None and not is_set and (at.gi_id is None or is_fixed):
        return None
    record = home_for(grant, booking.namespace, name, state.boot_id)
    if daemon is None:
        return replace(record, device=at, daemon=is_set)
    return inherited_home(record, replace(at, step="made", uuid=uuid), daemon)


def _place_of(grant: DeviceGrant) -> tuple[str, str | None, int, int]:
    return str(grant.gpu), grant.profile, grant.start, grant.size


def _served_of(booking: Booking, grant: DeviceGrant) -> tuple[str, str, int | None]:
    return str(grant.gpu), booking.namespace, grant.share.uid if grant.share is not None else None


def _may_be_used(record: SliceRecord, state: NodeState) -> bool:
    """Whether a process of this boot may use more than was ordered last: a device that it could use exists."""
    homes = map(state.home_of, record.booking.devices)
    return bool(record.boot_id) or any(home is not None and home.pid for home in homes)


def _found_for(
    booking: Booking, grant: DeviceGrant, state: NodeState, found: Discovered, *, may_live: bool
) -> DeviceRecord:
    """What exists of one device. A share that may be in use (`may_live`) is kept only if it works."""
    if grant.share is None and grant.profile is not None and state.devices.is_fixed(grant.gpu):
        return mig_instance.found_again(grant, state.devices, state.claims()) if may_live else DeviceRecord()
    if grant.share is None:
        return found.instance_at(grant, state.devices)
    home = state.home_of(grant)
    domain = (booking.namespace, grant.share.uid)
    if home is None or home.phase not in {"making", "ready"} or (home.namespace, home.uid) != domain:
        return DeviceRecord()
    if not may_live or not home.daemon or not home.device.uuid:
        return DeviceRecord()
    return DeviceRecord(step="made", uuid=home.device.uuid)


def _handed_out(device: DeviceRecord, grant: DeviceGrant, state: NodeState) -> DeviceRecord:
    if grant.profile is None and grant.share is None:
        is_there = mig_instance.why_impossible(grant, state.devices) is None
        return DeviceRecord(step="made", uuid=str(grant.gpu)) if is_there else device
    return replace(device, step="made")


def _is_there_anyway(grant: DeviceGrant, state: NodeState) -> bool:
    """A whole GPU needs no creation; a share exists when its home's daemon does."""
    if grant.share is None:
        return grant.profile is None
    home = state.home_of(grant)
    return home is not None and home.phase == "ready"
