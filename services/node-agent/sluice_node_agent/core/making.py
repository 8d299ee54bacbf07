"""
How a slice is made: intent saved, GPU instance, saved, compute instance, saved, read back, ticket, ready.

Pure decisions over one record: `next_step` says what is needed now, `take_result` what the record becomes. A step is
announced in the journal before it is taken, so a crash at any point finds either the intent or the result. Devices of
one slice are made one after another; if one fails all are undone in reverse (see `unmaking`). A shared device is not
made here: the slice waits for its home (see `homes`) and joins it.
"""

from msgspec.structs import replace

from sluice.contracts.messages import ContainerDevices, DeviceGrant
from sluice_node_agent.core import fixed_layouts, instances, shares
from sluice_node_agent.core.backing_off import is_stuck
from sluice_node_agent.core.events import (
    DeviceErrorKind,
    DeviceRefused,
    Holder,
    HoldersListed,
    Result,
    TicketMade,
    TicketRefused,
    TicketRemoved,
)
from sluice_node_agent.core.fixed_layouts import strangers_of
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.homes import had_tenants
from sluice_node_agent.core.instances import NOTHING
from sluice_node_agent.core.instructions import ListHolders, MakeTicket, OwnInstruction, RemoveTicket
from sluice_node_agent.core.records import DeviceRecord, HomeRecord, SliceRecord, TicketRecord
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.work import HomeWork, Next, failing, key_of, pairs, with_device, without_device

Plan = SliceRecord | OwnInstruction | None


def begin(record: SliceRecord, floor: Floor, ticket: str) -> SliceRecord:
    """Start making: from now on an instance may be there."""
    record = replace(record, phase="making", boot_id=floor.boot_id, error="", message="")
    return _announce_next(record, floor, ticket)


def next_step(record: SliceRecord, floor: Floor, rules: Rules, token: int, ticket: str) -> Next:
    """What making needs now. `ticket` is a name never used before."""
    if record.stale_tickets:
        return RemoveTicket(token, record.stale_tickets[0])
    if record.boot_id != floor.boot_id:
        return begin(record, floor, ticket)
    for number, grant, device in pairs(record):
        if device.step == "made":
            if grant.share is not None and not _is_at_home(device, floor.home_of(grant)):
                return to_make_again(without_device(record, number))
            continue
        if grant.share is not None:
            return _join(record, number, floor, rules, ticket)
        return _step_to_make(record, number, floor, token, ticket)
    unserved = next((grant for grant in record.booking.devices if not is_served(grant, floor)), None)
    if unserved is not None:
        return _await_service(record, unserved, floor, rules)
    if not record.ticket:
        return _announce_next(record, floor, ticket)
    return make_ticket(record, floor, token)


def take_result(record: SliceRecord, sent: OwnInstruction, result: Result, ticket: str, floor: Floor) -> SliceRecord:
    """What the record becomes by the result of the step that was taken. `ticket` is a name never used before."""
    number = next((n for n, _, device in pairs(record) if device.step != "made"), 0)
    match result:
        case HoldersListed(holders=holders) if record.booking.devices[number].profile is None:
            return _take_whole(record, number, holders, floor, ticket)
        case HoldersListed(holders=holders):
            assert isinstance(sent, ListHolders)
            grant, strangers = record.booking.devices[number], strangers_of(holders, record.booking.owner)
            found = fixed_layouts.taken(grant, sent.uuid, strangers, floor.devices, floor.claims())
            return failing(record, *found) if isinstance(found, tuple) else with_device(record, number, found)
        case TicketRemoved():
            return replace(record, stale_tickets=record.stale_tickets[1:])
        case TicketMade():
            return replace(record, phase="ready", lost=False)
        case TicketRefused(message=message):
            return failing(record, "TicketRefused", message)
        case DeviceRefused(kind=kind, message=message):
            device = instances.after_refusal(record.devices[number], sent, kind)
            return failing(with_device(record, number, device), str(kind), message)
    device = instances.made(record.devices[number], result)
    record = with_device(record, number, device)
    return _announce_next(record, floor, ticket) if device.step == "made" else record


def lost_devices(record: SliceRecord, floor: Floor) -> SliceRecord | None:
    """A ready slice of which a device vanished, as it is to be made again; None when all is there."""
    again = record
    for number, grant, device in pairs(record):
        if grant.share is not None:
            if not _is_at_home(device, floor.home_of(grant)):
                again = without_device(again, number)
        elif not floor.devices.answers(grant.gpu):
            continue
        elif grant.profile is None:
            if instances.why_impossible(grant, floor.devices) is not None:  # somebody has put it in MIG mode
                again = without_device(again, number)
        else:
            found = floor.devices.instance(grant.gpu, device.gi_id)
            if found is None or not instances.is_at(grant, device, floor.devices):
                again = without_device(again, number)
            elif found.uuid != device.uuid:
                is_ours = not found.uuid and not fixed_layouts.is_kept(grant, device, floor.devices)
                left = replace(device, step="intended", uuid="") if is_ours else NOTHING
                again = with_device(again, number, left)
    return None if again is record else to_make_again(again)


def to_make_again(record: SliceRecord) -> SliceRecord:
    """Devices vanished: the old ticket must go before a new one comes, so that no container starts with an old UUID."""
    stale = (*record.stale_tickets, record.ticket) if record.ticket else record.stale_tickets
    return replace(record, phase="making", lost=record.lost or record.phase == "ready", stale_tickets=stale, ticket="")


def containers_of(record: SliceRecord, floor: Floor) -> tuple[ContainerDevices, ...]:
    """What each container must be told, in the order of the booking."""
    homes = {number: home for number, grant, _ in pairs(record) if (home := floor.home_of(grant)) is not None}
    return shares.containers_of(record, floor.devices, homes, floor.mps_root, time_quota=floor.time_quota)


def make_ticket(record: SliceRecord, floor: Floor, token: int) -> MakeTicket:
    """The ticket of a slice whose devices are all there: what its containers are told, and the copy of its record."""
    copy = TicketRecord(
        booking=record.booking,
        revision=record.revision,
        boot_id=record.boot_id,
        devices=tuple(_with_home(device, floor.home_of(grant)) for _, grant, device in pairs(record)),
        counts=record.adjusting.counts if record.adjusting is not None else (),
    )
    return MakeTicket(token, record.ticket, copy, containers_of(record, floor))


def is_served(grant: DeviceGrant, floor: Floor) -> bool:
    """Whether a client of a shared device would find its server, with limits that let it have what was granted."""
    if grant.share is None:
        return True
    home = floor.homes.get(key_of(grant))
    if home is None or home.saving or home.record.phase != "ready":
        return False
    return shares.covers(home.record.limits, shares.limits_of(grant, floor.devices))


# -- inside -------------------------------------------------------------------------------------------------------


def _with_home(device: DeviceRecord, home: HomeRecord | None) -> DeviceRecord:
    """A device as its ticket tells of it: of a share also which instance its home is."""
    return device if home is None else replace(device, gi_id=home.device.gi_id, found=home.device.found)


def _step_to_make(record: SliceRecord, number: int, floor: Floor, token: int, ticket: str) -> Next:
    """What a device of the slice's own needs now."""
    _, grant, device = pairs(record)[number]
    problem = instances.why_impossible(grant, floor.devices)
    if problem is not None:
        return failing(record, *problem)
    if grant.profile is None:
        return ListHolders(token, grant.gpu, str(grant.gpu))
    if fixed_layouts.is_to_be_taken(grant, device, floor.devices):
        step = fixed_layouts.step_to_take(grant, floor.devices, floor.claims(), token)
        return failing(record, *step) if isinstance(step, tuple) else step
    if device.step == "planned":
        return None if floor.devices.is_dark(grant.gpu) else begin(record, floor, ticket)
    return instances.step_to_make(grant, device, floor.devices, token)


def _announce_next(record: SliceRecord, floor: Floor, ticket: str) -> SliceRecord:
    """
    Save the next intent together with the last result: the next device's, or the ticket's name.

    No intent is said where nobody can see what is there already: what is found later would pass for ours.
    """
    for number, grant, device in pairs(record):
        if device.step == "planned" and grant.profile is not None and grant.share is None:
            if floor.devices.is_dark(grant.gpu):
                return record
            return with_device(record, number, replace(device, step="intended"))
        if device.step != "made":
            return record
    return record if record.ticket else replace(record, ticket=ticket)


def _take_whole(
    record: SliceRecord, number: int, holders: tuple[Holder, ...], floor: Floor, ticket: str
) -> SliceRecord:
    """A whole GPU is made by nothing but nobody else being on it."""
    grant = record.booking.devices[number]
    strangers = strangers_of(holders, record.booking.owner)
    if strangers:
        message = f"{grant.gpu} is used by {', '.join(strangers)}"
        return failing(record, str(DeviceErrorKind.IN_USE), message)
    taken = with_device(record, number, DeviceRecord(step="made", uuid=str(grant.gpu)))
    return _announce_next(taken, floor, ticket)


def _join(record: SliceRecord, number: int, floor: Floor, rules: Rules, ticket: str) -> SliceRecord | None:
    """Join the home of a shared device, when it is ready for this tenant; None while it is not."""
    grant = record.booking.devices[number]
    problem = instances.why_impossible(grant, floor.devices)
    if problem is not None:
        return failing(record, *problem)
    home = floor.homes.get(key_of(grant))
    if home is None:
        return None
    there = home.record
    if there.phase in {"undoing", "unmaking"}:
        why = f"{grant.gpu} {grant.start}:{grant.size}: a home that was there cannot be taken down: {home.trouble}"
        return failing(record, str(DeviceErrorKind.IN_USE), why) if is_stuck(home, rules) else None
    if there.phase == "failed":
        return failing(record, there.error, there.message)
    mismatch = _why_not_in(grant, record.booking.namespace, home, floor, rules)
    if mismatch:
        return failing(record, str(DeviceErrorKind.NOT_SUPPORTED), mismatch)
    if home.strangers:
        return failing(record, str(DeviceErrorKind.IN_USE), f"{grant.gpu} is {home.trouble}")
    if there.inherited or not is_served(grant, floor):
        return None
    joined = DeviceRecord(step="made", uuid=there.device.uuid, daemon_restarts=there.restarts)
    return _announce_next(with_device(record, number, joined), floor, ticket)


def _await_service(record: SliceRecord, grant: DeviceGrant, floor: Floor, rules: Rules) -> SliceRecord | None:
    """A joined home does not serve its tenant (yet): wait, unless it never will."""
    home = floor.homes.get(key_of(grant))
    if home is None or home.record.phase not in {"making", "ready"}:
        return to_make_again(without_device(record, record.booking.devices.index(grant)))
    mismatch = _why_not_in(grant, record.booking.namespace, home, floor, rules)
    return failing(record, str(DeviceErrorKind.NOT_SUPPORTED), mismatch) if mismatch else None


def _why_not_in(grant: DeviceGrant, namespace: str, home: HomeWork, floor: Floor, rules: Rules) -> str:
    assert grant.share is not None
    there = home.record
    if (there.namespace, there.uid) != (namespace, grant.share.uid):
        wanted, found = f"{namespace}/{grant.share.uid}", f"{there.namespace}/{there.uid}"
        return f"{grant.gpu} {grant.start}:{grant.size} is shared by {found}, so {wanted} cannot join it"
    if there.profile != grant.profile:
        return f"{grant.gpu} {grant.start}:{grant.size} is shared as {there.profile}, not as {grant.profile}"
    has_failed = home.failures >= rules.quarantine_after
    if has_failed and had_tenants(there):
        return f"the MPS daemon of {grant.gpu} {grant.start}:{grant.size} died and does not start again: {home.trouble}"
    is_raising = there.phase == "ready" and not shares.covers(there.limits, shares.limits_of(grant, floor.devices))
    if has_failed and is_raising:
        return f"the MPS server of {grant.gpu} did not take the limits of a larger share: {home.trouble}"
    return ""


def _is_at_home(device: DeviceRecord, home: HomeRecord | None) -> bool:
    """Whether a joined home is still the same one. While its daemon is started again, it is."""
    return home is not None and home.phase in {"making", "ready"} and home.device.uuid == device.uuid
