"""Recover slices from tickets when the journal was lost. A ticket exists exactly while its slice is ready, and only the
agent can write it. It is trusted if its devices are at exactly their places and assigned to no other slice, or on a GPU
that does not answer. Otherwise it becomes a warning. What happens to a slice is decided by the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Booking, DeviceGrant
from sluice.contracts.ticket_paths import is_ticket_of
from sluice_node_agent.core.events import FoundMpsHome, FoundTicket
from sluice_node_agent.core.journal_records import (
    DeviceRecord,
    ResizeRecord,
    SharedDeviceRecord,
    SliceRecord,
    TicketRecord,
)
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.slices import mig_instance
from sluice_node_agent.core.state.devices import Devices
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SharedDeviceKey, home_for, inherited_home, shared_device_key


@dataclass(frozen=True, slots=True)
class TicketProof:
    """A slice that a ticket proves, and the homes of its shares that no record names yet."""

    slice: SliceRecord
    homes: tuple[SharedDeviceRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class TicketRejected:
    """Why a ticket is rejected. `over`: its devices are gone, so no process can use them."""

    why: str
    over: bool = False


def newest_first(tickets: Iterable[FoundTicket]) -> list[FoundTicket]:
    """Tickets in the order to check them: of one allocation, a later ticket replaces an earlier one."""
    return sorted(tickets, key=lambda each: (-each.record.revision if each.record is not None else 0, each.ticket))


def verify_ticket(
    ticket: FoundTicket, node: NodeName, state: NodeState, found: Discovered
) -> TicketProof | TicketRejected:
    """Check one ticket. `state` holds all slices and homes that are known already."""
    record = ticket.record
    if record is None:
        return TicketRejected(ticket.problem, over=ticket.is_half)
    wrong = _is_no_record(ticket.ticket, record, node, state)
    if wrong is not None:
        return wrong
    homes: dict[SharedDeviceKey, SharedDeviceRecord] = {}
    devices: list[DeviceRecord] = []
    for grant, device in zip(record.booking.devices, record.devices, strict=True):
        wrong = _is_not_there(grant, device, state.devices) or _is_anothers(record.booking, grant, state)
        if wrong is not None:
            return wrong
        if grant.share is None:
            devices.append(device)
            continue
        home = _home_of(record.booking, grant, device, state, found)
        if isinstance(home, TicketRejected):
            return home
        if shared_device_key(grant) not in state.homes:
            homes[shared_device_key(grant)] = home
        devices.append(DeviceRecord(step="made", uuid=device.uuid))
    return TicketProof(_slice_of(ticket.ticket, record, tuple(devices), found), tuple(homes.values()))


def _slice_of(name: str, record: TicketRecord, devices: tuple[DeviceRecord, ...], found: Discovered) -> SliceRecord:
    allocation = record.booking.allocation
    others = (each for each in found.tickets if each != name and is_ticket_of(each, allocation))
    return SliceRecord(
        booking=record.booking,
        revision=record.revision,
        phase="ready",
        devices=devices,
        adjusting=ResizeRecord(counts=record.counts, renewed=True) if record.counts else None,
        boot_id=record.boot_id,
        ticket=name,
        stale_tickets=tuple(others),
    )


def _is_no_record(name: str, record: TicketRecord, node: NodeName, state: NodeState) -> TicketRejected | None:
    booking = record.booking
    if record.boot_id != state.boot_id:
        return TicketRejected(f"it is of boot {record.boot_id}, and this is {state.boot_id}", over=True)
    if booking.node != node:
        return TicketRejected(f"it is of node {booking.node}")
    if not is_ticket_of(name, booking.allocation):
        return TicketRejected(f"it tells of {booking.allocation}, for which it was not made")
    if not booking.devices or len(booking.devices) != len(record.devices):
        return TicketRejected(f"it books {len(booking.devices)} devices and tells of {len(record.devices)}")
    if any(device.step != "made" or not device.uuid for device in record.devices):
        return TicketRejected("it lists a device that was not created")
    if booking.allocation in state.slices:
        return TicketRejected(f"{booking.allocation} is known, with another ticket", over=True)
    return None


def _is_not_there(grant: DeviceGrant, device: DeviceRecord, devices: Devices) -> TicketRejected | None:
    if not devices.knows(grant.gpu):
        return TicketRejected(f"this node has no GPU {grant.gpu}", over=True)
    if grant.profile is None:
        problem = mig_instance.why_impossible(grant, devices)
        if problem is not None or device.uuid != grant.gpu:
            return TicketRejected(problem[1] if problem is not None else f"{device.uuid} is not {grant.gpu}")
        return None
    if not devices.answers(grant.gpu):
        return None
    at = devices.instance(grant.gpu, device.gi_id)
    if at is not None and mig_instance.is_at(grant, device, devices) and at.uuid == device.uuid:
        return None
    is_there = any(each.uuid == device.uuid for report in devices.reports.values() for each in report.instances)
    where = f"{grant.profile} at {grant.gpu} {grant.start}:{grant.size}"
    return TicketRejected(f"{device.uuid} is not the {where}", over=not is_there)


def _is_anothers(booking: Booking, grant: DeviceGrant, state: NodeState) -> TicketRejected | None:
    """Why another slice has the place, or a part of it. One that still waits for it does not count."""
    for work in state.slices.values():
        for other in work.record.booking.devices if work.record.phase != "planned" else ():
            apart = other.start + other.size <= grant.start or grant.start + grant.size <= other.start
            both_share = grant.share is not None and other.share is not None
            live_together = both_share and shared_device_key(other) == shared_device_key(grant)
            if other.gpu == grant.gpu and not apart and not live_together:
                return TicketRejected(f"{booking.allocation} cannot be where {work.allocation} is")
    return None


def _home_of(
    booking: Booking, grant: DeviceGrant, device: DeviceRecord, state: NodeState, found: Discovered
) -> SharedDeviceRecord | TicketRejected:
    assert grant.share is not None
    domain = (booking.namespace, grant.share.uid)
    known = state.home_of(grant)
    if known is not None:
        if (known.device.uuid, known.namespace, known.uid) != (device.uuid, *domain):
            return TicketRejected(f"{device.uuid} is the home of {known.namespace}/{known.uid}")
        return known
    daemon = next((each for each in found.homes.values() if _serves(each, grant, device, domain)), None)
    if daemon is None:
        return TicketRejected(f"no home of {booking.namespace}/{grant.share.uid} is on {device.uuid}")
    record = home_for(grant, booking.namespace, daemon.home, state.boot_id)
    return inherited_home(record, device, daemon)


def _serves(home: FoundMpsHome, grant: DeviceGrant, device: DeviceRecord, domain: tuple[str, int]) -> bool:
    return (home.gpu, home.device, home.namespace, home.uid) == (grant.gpu, device.uuid, *domain)
