"""
How a slice is taken down: ticket, then per device in reverse: no process of the tenant left, compute instance, GPU
instance; each result saved. For an order to unmake (which ends in a tombstone) and for undoing what failed half-way.

Pure decisions over one record. What refuses is tried again by the caller: nothing here gives up, because a place is
free only when the device says so.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from sluice_node_agent.core.devices import Devices
from sluice_node_agent.core.events import (
    ComputeInstanceDestroyed,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceDestroyed,
    HoldersListed,
    ListHolders,
    OwnInstruction,
    RemoveTicket,
    Result,
    TicketRefused,
    TicketRemoved,
)
from sluice_node_agent.core.records import DeviceRecord, SliceRecord, Tombstone
from sluice_node_agent.core.work import Next, Work, pairs, with_device, without_instance


def next_step(work: Work, devices: Devices, boot_id: str, token: int) -> Next:
    """What taking down needs now."""
    record = work.record
    for ticket in (record.ticket, *record.stale_tickets):
        if ticket:
            return RemoveTicket(token, ticket)
    for number, grant, device in reversed(pairs(record)):
        if record.revoked and number not in work.free_of_holders:
            if grant.profile is None and _may_hold(record, devices, number, boot_id):
                return ListHolders(token, grant.gpu, str(grant.gpu))
            if grant.profile is not None and device.uuid:
                return ListHolders(token, grant.gpu, device.uuid)
        if device.gi_id is None:
            continue
        if device.uuid:
            return DestroyComputeInstance(token, grant.gpu, device.gi_id, device.uuid)
        return DestroyGpuInstance(token, grant.gpu, device.gi_id, grant.start, grant.size)
    return _ended(record)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step led to: the changed record, or trouble, or neither (nobody was found on the device)."""

    record: SliceRecord | None = None
    trouble: str = ""
    holders: tuple[str, ...] = ()
    free: int | None = None
    """The number of a device on which no process of the tenant is left."""


def take_result(record: SliceRecord, sent: OwnInstruction, result: Result) -> Outcome:
    """What the result of a step changes."""
    match result:
        case TicketRemoved():
            assert isinstance(sent, RemoveTicket)
            ticket = "" if record.ticket == sent.ticket else record.ticket
            stale = tuple(ticket for ticket in record.stale_tickets if ticket != sent.ticket)
            return Outcome(replace(record, ticket=ticket, stale_tickets=stale))
        case HoldersListed():
            return _take_holders(record, result, _number_of(record, sent))
        case ComputeInstanceDestroyed():
            return Outcome(with_device(record, _number_of(record, sent), uuid=""))
        case GpuInstanceDestroyed():
            return Outcome(without_instance(record, _number_of(record, sent)))
        case DeviceRefused(kind=kind, message=message):
            return _take_refusal(record, sent, kind, message)
        case TicketRefused(message=message):
            return Outcome(trouble=message)
    raise AssertionError(f"{result} answers no step of unmaking")


# -- inside -------------------------------------------------------------------------------------------------------


def _may_hold(record: SliceRecord, devices: Devices, number: int, boot_id: str) -> bool:
    """
    Whether processes can be on a GPU that was granted whole: not if it is not here and was not in this boot.

    A GPU of this boot that does not answer is asked again and again: nobody knows what still runs on it.
    """
    return devices.knows(record.booking.devices[number].gpu) or record.boot_id == boot_id


def _ended(record: SliceRecord) -> SliceRecord | Tombstone:
    booking = record.booking
    if record.revoked:
        return Tombstone(
            allocation=booking.allocation, request=booking.request, revision=record.revision, cause=record.cause
        )
    devices = tuple(DeviceRecord() for _ in record.devices)
    return replace(record, phase="degraded" if record.lost else "failed", devices=devices)


def _number_of(record: SliceRecord, sent: OwnInstruction) -> int:
    """Which device a sent instruction was about."""
    for number, grant, device in pairs(record):
        match sent:
            case ListHolders(gpu=gpu, uuid=uuid) if gpu == grant.gpu and uuid == (device.uuid or str(grant.gpu)):
                return number
            case DestroyComputeInstance(gpu=gpu, gi_id=gi_id) | DestroyGpuInstance(gpu=gpu, gi_id=gi_id) if (
                gpu == grant.gpu and gi_id == device.gi_id
            ):
                return number
    raise AssertionError(f"{sent} is about no device of {record.booking.allocation}")


def _take_holders(record: SliceRecord, result: HoldersListed, number: int) -> Outcome:
    left = [holder for holder in result.holders if holder.owner in {record.booking.owner, ""}]
    if not left:
        return Outcome(free=number)
    gpu = record.booking.devices[number].gpu
    return Outcome(
        trouble=f"{len(left)} process(es) of the tenant left on {gpu}",
        holders=tuple(f"{holder.name or 'process'} {holder.pid}" for holder in left),
    )


def _take_refusal(record: SliceRecord, sent: OwnInstruction, kind: DeviceErrorKind, message: str) -> Outcome:
    if kind is DeviceErrorKind.NOT_FOUND and isinstance(sent, DestroyComputeInstance):
        return Outcome(with_device(record, _number_of(record, sent), uuid=""))
    not_ours = kind in {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}
    if not_ours and isinstance(sent, (DestroyComputeInstance, DestroyGpuInstance)):
        return Outcome(without_instance(record, _number_of(record, sent)))
    return Outcome(trouble=f"{kind}: {message}")
