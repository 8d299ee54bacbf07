"""How a slice is created: intent saved, GPU instance, saved, compute instance, saved, verified, ticket, ready. Pure:
`next_step` returns what is needed now, `take_result` the record that follows. A step is saved before it is taken, so
after a crash either the intent or the result is found. Devices are created one after another; if one fails, all are
undone in reverse (`destroy`). A shared device is created by its home (`shared.lifecycle`): the slice waits and
joins."""

from msgspec.structs import replace

from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core import events, instructions
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.journal_records import DeviceRecord, SharedDeviceRecord, SliceRecord, TicketRecord
from sluice_node_agent.core.shared import mps_limits
from sluice_node_agent.core.shared.lifecycle import had_tenants
from sluice_node_agent.core.slices import mig_instance
from sluice_node_agent.core.slices.mig_instance import NO_DEVICE, strangers_of
from sluice_node_agent.core.state import tasks
from sluice_node_agent.core.state.node_state import NodeState


def begin(record: SliceRecord, state: NodeState, ticket: str) -> SliceRecord:
    """Start creating: from now on an instance may exist."""
    record = replace(record, phase="making", boot_id=state.boot_id, error="", message="")
    return _announce_next(record, state, ticket)


def next_step(record: SliceRecord, state: NodeState, config: AgentConfig, token: int, ticket: str) -> tasks.NextStep:
    """The next step of creation. `ticket` is a name never used before."""
    if record.stale_tickets:
        return instructions.RemoveTicket(token, record.stale_tickets[0])
    if record.cdi_files:
        return instructions.RemoveCdi(token, record.cdi_files[0])  # of devices that are gone
    if record.boot_id != state.boot_id:
        return begin(record, state, ticket)
    for number, grant, device in tasks.numbered_devices(record):
        if device.step == "made":
            if grant.share is not None and not _is_at_home(device, state.home_of(grant)):
                return to_make_again(tasks.without_device(record, number))
            continue
        if grant.share is not None:
            return _join(record, number, state, config, ticket)
        return _step_to_make(record, number, state, token, ticket)
    unserved = next((grant for grant in record.booking.devices if not is_served(grant, state)), None)
    if unserved is not None:
        return _await_service(record, unserved, state, config)
    if not record.ticket:
        return _announce_next(record, state, ticket)
    return make_ticket(record, state, token)


def take_result(
    record: SliceRecord, sent: instructions.OwnInstruction, result: events.Result, ticket: str, state: NodeState
) -> SliceRecord:
    """The record after the result of a step. `ticket` is a name never used before."""
    number = next((n for n, _, device in tasks.numbered_devices(record) if device.step != "made"), 0)
    match result:
        case events.HoldersListed(holders=holders) if record.booking.devices[number].profile is None:
            return _take_whole(record, number, holders, state, ticket)
        case events.HoldersListed(holders=holders):
            assert isinstance(sent, instructions.ListHolders)
            grant, strangers = record.booking.devices[number], strangers_of(holders, record.booking.owner)
            found = mig_instance.taken(grant, sent.uuid, strangers, state.devices, state.claims())
            return (
                tasks.undoing(record, *found) if isinstance(found, tuple) else tasks.with_device(record, number, found)
            )
        case events.TicketRemoved():
            return replace(record, stale_tickets=record.stale_tickets[1:])
        case events.TicketMade():
            return replace(record, phase="ready", lost=False)
        case events.TicketRefused(message=message):
            return tasks.undoing(record, "TicketRefused", message)
        case events.DeviceRefused(kind=kind, message=message):
            device = mig_instance.after_refusal(record.devices[number], sent, kind)
            return tasks.undoing(tasks.with_device(record, number, device), str(kind), message)
    device = mig_instance.made(record.devices[number], result)
    record = tasks.with_device(record, number, device)
    return _announce_next(record, state, ticket) if device.step == "made" else record


def lost_devices(record: SliceRecord, state: NodeState) -> SliceRecord | None:
    """The record of a ready slice that lost a device, to be created again; None when all exist."""
    again = record
    for number, grant, device in tasks.numbered_devices(record):
        if grant.share is not None:
            if not _is_at_home(device, state.home_of(grant)):
                again = tasks.without_device(again, number)
        elif not state.devices.answers(grant.gpu):
            continue
        elif grant.profile is None:
            if mig_instance.why_impossible(grant, state.devices) is not None:  # it was put in MIG mode
                again = tasks.without_device(again, number)
        else:
            found = state.devices.instance(grant.gpu, device.gi_id)
            if found is None or not mig_instance.is_at(grant, device, state.devices):
                again = tasks.without_device(again, number)
            elif found.uuid != device.uuid:
                is_ours = not found.uuid and not mig_instance.is_kept(grant, device, state.devices)
                left = replace(device, step="intended", uuid="") if is_ours else NO_DEVICE
                again = tasks.with_device(again, number, left)
    return None if again is record else to_make_again(again)


def to_make_again(record: SliceRecord) -> SliceRecord:
    """Devices vanished: remove the old ticket and CDI files first: their UUIDs may be another tenant's by then."""
    stale = (*record.stale_tickets, record.ticket) if record.ticket else record.stale_tickets
    return replace(record, phase="making", lost=record.lost or record.phase == "ready", stale_tickets=stale, ticket="")


def make_ticket(record: SliceRecord, state: NodeState, token: int) -> instructions.MakeTicket:
    """The ticket of a slice whose devices all exist: its containers' devices, and a copy of its record."""
    copy = TicketRecord(
        booking=record.booking,
        revision=record.revision,
        boot_id=record.boot_id,
        devices=tuple(_with_home(device, state.home_of(grant)) for _, grant, device in tasks.numbered_devices(record)),
        counts=record.adjusting.counts if record.adjusting is not None else (),
    )
    return instructions.MakeTicket(token, record.ticket, copy, mps_limits.containers_of(record, state))


def is_served(grant: DeviceGrant, state: NodeState) -> bool:
    """Whether a client of a shared device would find its server, with limits that cover its grant."""
    if grant.share is None:
        return True
    home = state.homes.get(tasks.shared_device_key(grant))
    if home is None or home.saving or home.record.phase != "ready":
        return False
    return mps_limits.covers(home.record.limits, mps_limits.limits_of(grant, state.devices))


def _with_home(device: DeviceRecord, home: SharedDeviceRecord | None) -> DeviceRecord:
    """A device as its ticket records it: of a share also its home's instance."""
    return device if home is None else replace(device, gi_id=home.device.gi_id, found=home.device.found)


def _step_to_make(record: SliceRecord, number: int, state: NodeState, token: int, ticket: str) -> tasks.NextStep:
    _, grant, device = tasks.numbered_devices(record)[number]
    problem = mig_instance.why_impossible(grant, state.devices)
    if problem is not None:
        return tasks.undoing(record, *problem)
    if grant.profile is None:
        return instructions.ListHolders(token, grant.gpu, str(grant.gpu))
    if mig_instance.is_to_be_taken(grant, device, state.devices):
        step = mig_instance.step_to_take(grant, state.devices, state.claims(), token)
        return tasks.undoing(record, *step) if isinstance(step, tuple) else step
    if device.step == "planned":
        return None if state.devices.is_dark(grant.gpu) else begin(record, state, ticket)
    return mig_instance.step_to_make(grant, device, state.devices, token)


def _announce_next(record: SliceRecord, state: NodeState, ticket: str) -> SliceRecord:
    """Save the next intent together with the last result: the next device's, or the ticket's name. Not on a GPU that
    does not answer: an instance found later would pass for ours."""
    for number, grant, device in tasks.numbered_devices(record):
        if device.step == "planned" and grant.profile is not None and grant.share is None:
            if state.devices.is_dark(grant.gpu):
                return record
            return tasks.with_device(record, number, replace(device, step="intended"))
        if device.step != "made":
            return record
    return record if record.ticket else replace(record, ticket=ticket)


def _take_whole(
    record: SliceRecord, number: int, holders: tuple[events.Holder, ...], state: NodeState, ticket: str
) -> SliceRecord:
    grant = record.booking.devices[number]
    strangers = strangers_of(holders, record.booking.owner)
    if strangers:
        message = f"{grant.gpu} is used by {', '.join(strangers)}"
        return tasks.undoing(record, str(events.DeviceErrorKind.IN_USE), message)
    taken = tasks.with_device(record, number, DeviceRecord(step="made", uuid=str(grant.gpu)))
    return _announce_next(taken, state, ticket)


def _join(record: SliceRecord, number: int, state: NodeState, config: AgentConfig, ticket: str) -> SliceRecord | None:
    grant = record.booking.devices[number]
    problem = mig_instance.why_impossible(grant, state.devices)
    if problem is not None:
        return tasks.undoing(record, *problem)
    home = state.homes.get(tasks.shared_device_key(grant))
    if home is None:
        return None
    there = home.record
    if there.phase in {"undoing", "unmaking"}:
        why = f"{grant.gpu} {grant.start}:{grant.size}: an earlier home cannot be destroyed: {home.trouble}"
        return tasks.undoing(record, str(events.DeviceErrorKind.IN_USE), why) if tasks.is_stuck(home, config) else None
    if there.phase == "failed":
        return tasks.undoing(record, there.error, there.message)
    mismatch = _why_not_in(record, grant, home, state, config)
    if mismatch:
        return tasks.undoing(record, str(events.DeviceErrorKind.NOT_SUPPORTED), mismatch)
    if home.strangers:
        return tasks.undoing(record, str(events.DeviceErrorKind.IN_USE), f"{grant.gpu} is {home.trouble}")
    if there.inherited or not is_served(grant, state):
        return None
    joined = DeviceRecord(step="made", uuid=there.device.uuid, daemon_restarts=there.restarts)
    return _announce_next(tasks.with_device(record, number, joined), state, ticket)


def _await_service(record: SliceRecord, grant: DeviceGrant, state: NodeState, config: AgentConfig) -> tasks.NextStep:
    home = state.homes.get(tasks.shared_device_key(grant))
    if home is None or home.record.phase not in {"making", "ready"}:
        return to_make_again(tasks.without_device(record, record.booking.devices.index(grant)))
    mismatch = _why_not_in(record, grant, home, state, config)
    return tasks.undoing(record, str(events.DeviceErrorKind.NOT_SUPPORTED), mismatch) if mismatch else None


def _why_not_in(
    record: SliceRecord, grant: DeviceGrant, home: tasks.SharedDeviceTask, state: NodeState, config: AgentConfig
) -> str:
    assert grant.share is not None
    there, namespace = home.record, record.booking.namespace
    if (there.namespace, there.uid) != (namespace, grant.share.uid):
        wanted, found = f"{namespace}/{grant.share.uid}", f"{there.namespace}/{there.uid}"
        return f"{grant.gpu} {grant.start}:{grant.size} is shared by {found}, so {wanted} cannot join it"
    if there.profile != grant.profile:
        return f"{grant.gpu} {grant.start}:{grant.size} is shared as {there.profile}, not as {grant.profile}"
    has_failed = home.failures >= config.quarantine_after
    if has_failed and had_tenants(there):
        return f"the MPS daemon of {grant.gpu} {grant.start}:{grant.size} died and does not start again: {home.trouble}"
    needed = mps_limits.limits_of(grant, state.devices)
    if has_failed and there.phase == "ready" and not mps_limits.covers(there.limits, needed):
        return f"the MPS server of {grant.gpu} did not take the limits of a larger share: {home.trouble}"
    return ""


def _is_at_home(device: DeviceRecord, home: SharedDeviceRecord | None) -> bool:
    """Whether a joined home is still the same one, even while its daemon restarts."""
    return home is not None and home.phase in {"making", "ready"} and home.device.uuid == device.uuid
