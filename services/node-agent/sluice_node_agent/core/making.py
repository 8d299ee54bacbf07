"""
How a slice is made: intent saved, GPU instance, saved, compute instance, saved, read back, ticket, ready.

Pure decisions over one record: `next_step` says what is needed now, `take_result` what the record becomes. A step is
announced in the journal before it is taken, so a crash at any point finds either the intent or the result. Devices of
one slice are made one after another; if one fails all are undone in reverse (see `unmaking`).
"""

from msgspec.structs import replace

from sluice.contracts.messages import ContainerDevices, DeviceGrant
from sluice_node_agent.core.devices import Devices
from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    CreateComputeInstance,
    CreateGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    Holder,
    HoldersListed,
    InstanceVerified,
    ListHolders,
    MakeTicket,
    OwnInstruction,
    RemoveTicket,
    Result,
    TicketMade,
    TicketRefused,
    TicketRemoved,
    VerifyInstance,
)
from sluice_node_agent.core.records import SliceRecord
from sluice_node_agent.core.work import Next, failing, pairs, with_device, without_instance


def begin(record: SliceRecord, boot_id: str, ticket: str) -> SliceRecord:
    """Start making: from now on an instance may be there."""
    return _announce_next(replace(record, phase="making", boot_id=boot_id, error="", message=""), ticket)


def next_step(record: SliceRecord, devices: Devices, boot_id: str, token: int, ticket: str) -> Next:
    """What making needs now. `ticket` is a name never used before."""
    if record.stale_tickets:
        return RemoveTicket(token, record.stale_tickets[0])
    for _, grant, device in pairs(record):
        if device.step == "made":
            continue
        problem = _why_impossible(grant, devices)
        if problem is not None:
            return failing(record, *problem)
        if record.boot_id != boot_id or (device.step == "planned" and grant.profile is not None):
            return begin(record, boot_id, ticket)
        profile = devices.profile(grant)
        if grant.profile is None or profile is None:
            return ListHolders(token, grant.gpu, grant.gpu)
        if device.gi_id is None:
            return CreateGpuInstance(token, grant.gpu, profile.profile_id, grant.start, grant.size)
        if not device.uuid:
            return CreateComputeInstance(token, grant.gpu, device.gi_id)
        return VerifyInstance(token, grant.gpu, device.gi_id, profile.profile_id, grant.start, grant.size, device.uuid)
    booking = record.booking
    return MakeTicket(token, record.ticket, booking.allocation, booking.owner, containers_of(record, devices))


def take_result(record: SliceRecord, sent: OwnInstruction, result: Result, ticket: str) -> SliceRecord:
    """What the record becomes by the result of the step that was taken. `ticket` is a name never used before."""
    number = next((n for n, _, device in pairs(record) if device.step != "made"), 0)
    match result:
        case GpuInstanceCreated(gi_id=gi_id):
            return with_device(record, number, gi_id=gi_id)
        case ComputeInstanceCreated(uuid=uuid):
            return with_device(record, number, uuid=uuid)
        case InstanceVerified():
            return _announce_next(with_device(record, number, step="made"), ticket)
        case HoldersListed(holders=holders):
            return _take_whole(record, number, holders, ticket)
        case TicketRemoved():
            return replace(record, stale_tickets=record.stale_tickets[1:])
        case TicketMade():
            return replace(record, phase="ready", lost=False)
        case TicketRefused(message=message):
            return failing(record, "TicketRefused", message)
        case DeviceRefused(kind=kind, message=message):
            return failing(_after_refusal(record, number, sent, kind), str(kind), message)
    raise AssertionError(f"{result} answers no step of making")


def lost_devices(record: SliceRecord, devices: Devices) -> SliceRecord | None:
    """A ready slice of which a device vanished, as it is to be made again; None when all is there."""
    again = record
    for number, grant, device in pairs(record):
        if grant.profile is None or not devices.healthy(grant.gpu):
            continue
        found = devices.instance(grant.gpu, device.gi_id)
        if found is None or (found.profile, found.start, found.size) != (grant.profile, grant.start, grant.size):
            again = without_instance(again, number)
        elif found.uuid != device.uuid:
            again = with_device(again, number, step="intended", uuid="")
    return None if again is record else to_make_again(again)


def to_make_again(record: SliceRecord) -> SliceRecord:
    """Devices vanished: the old ticket must go before a new one comes, so that no container starts with an old UUID."""
    stale = (*record.stale_tickets, record.ticket) if record.ticket else record.stale_tickets
    return replace(record, phase="making", lost=record.lost or record.phase == "ready", stale_tickets=stale, ticket="")


def containers_of(record: SliceRecord, devices: Devices) -> tuple[ContainerDevices, ...]:
    """What each container must be told, in the order of the booking."""
    by_container: dict[str, list[tuple[str, int]]] = {}
    for _, grant, device in pairs(record):
        by_container.setdefault(grant.container, []).append((device.uuid, devices.memory_mib(grant)))
    return tuple(
        ContainerDevices(
            container=container,
            visible_devices=",".join(uuid for uuid, _ in theirs),
            memory_mib=sum(memory_mib for _, memory_mib in theirs),
        )
        for container, theirs in by_container.items()
    )


# -- inside -------------------------------------------------------------------------------------------------------


def _announce_next(record: SliceRecord, ticket: str) -> SliceRecord:
    """Save the next intent together with the last result: the next device's, or the ticket's name."""
    for number, grant, device in pairs(record):
        if device.step == "planned" and grant.profile is not None:
            return with_device(record, number, step="intended")
        if device.step != "made":
            return record
    return record if record.ticket else replace(record, ticket=ticket)


def _why_impossible(grant: DeviceGrant, devices: Devices) -> tuple[str, str] | None:
    """Why a granted device can never be made here: error and sentence."""
    report = devices.reports.get(grant.gpu)
    if report is None:
        return str(DeviceErrorKind.GPU_LOST), f"this node has no GPU {grant.gpu}"
    if grant.share is not None:
        return str(DeviceErrorKind.NOT_SUPPORTED), f"{grant.gpu}: this agent hands out no shares"
    if grant.profile is None:
        whole = "MIG is enabled, so it cannot be granted whole" if report.mig_enabled else None
        return (str(DeviceErrorKind.NOT_SUPPORTED), f"{grant.gpu}: {whole}") if whole else None
    if not report.mig_enabled:
        return str(DeviceErrorKind.NOT_SUPPORTED), f"{grant.gpu}: MIG is not enabled"
    if devices.profile(grant) is None:
        return str(DeviceErrorKind.INVALID_ARGUMENT), f"{grant.gpu} ({report.model}) has no profile {grant.profile!r}"
    return None


def _take_whole(record: SliceRecord, number: int, holders: tuple[Holder, ...], ticket: str) -> SliceRecord:
    """A whole GPU is made by nothing but nobody else being on it."""
    grant = record.booking.devices[number]
    strangers = [f"{h.name or 'process'} {h.pid}" for h in holders if h.owner != record.booking.owner]
    if strangers:
        message = f"{grant.gpu} is used by {', '.join(strangers)}"
        return failing(record, str(DeviceErrorKind.IN_USE), message)
    return _announce_next(with_device(record, number, step="made", uuid=str(grant.gpu)), ticket)


def _after_refusal(record: SliceRecord, number: int, sent: OwnInstruction, kind: DeviceErrorKind) -> SliceRecord:
    """What is there after a refused step: a refused creation leaves nothing; what is not ours is not undone by us."""
    vanished = kind in {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}
    if isinstance(sent, CreateGpuInstance) or (vanished and not isinstance(sent, ListHolders)):
        return without_instance(record, number)
    return record
