"""How a ready share is resized: limits of its server, environment of its containers, and the end of the old size's use.
Pure, as `create`. The slice keeps all that it has meanwhile, and failures are retried. `shared.lifecycle` sets a home's
limits to those of its largest tenant; once they cover this one, its containers get their new values. Limits hold for
clients that connect afterwards (NVIDIA MPS, "nvidia-cuda-mps-control"), and a container keeps the environment that it
began with, for whatever connects later. So a share that shrinks gets a new ticket, and counts with its old size until
none of its containers has an older one, and every client of when that was removed has ended, in a pod or not, or is in
a container that is known not to have it."""

from collections.abc import Iterable

from msgspec.structs import replace

from sluice.contracts.kube.names import is_claim_name
from sluice.contracts.messages import DeviceGrant
from sluice.contracts.resize import max_sizes, uses_more
from sluice.contracts.ticket_paths import ticket_of
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import MpsSeen, Result, TenantsListed, TicketMade, TicketRefused, TicketRemoved
from sluice_node_agent.core.instructions import ListTenants, RemoveTicket
from sluice_node_agent.core.journal_records import ResizeRecord, SliceRecord
from sluice_node_agent.core.shared.mps_limits import containers_of
from sluice_node_agent.core.slices.create import is_served, make_ticket
from sluice_node_agent.core.slices.destroy import may_run
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import NextStep, SharedDeviceTask, SliceTask, shared_claims, shared_device_key


def begin(record: SliceRecord, devices: tuple[DeviceGrant, ...], counts: tuple[DeviceGrant, ...]) -> ResizeRecord:
    """A slice gets other shares. Its old size, and `counts`, count until they are not used any more."""
    had = record.adjusting.counts if record.adjusting is not None and record.adjusting.counts else ()
    most = max_sizes(record.booking.devices, devices)
    for others in (had, counts):
        most = max_sizes(most, others) if others else most
    return ResizeRecord(counts=most if most != devices else ())


def next_step(work: SliceTask, state: NodeState, token: int, ticket: str) -> NextStep:
    """The next step of a resized slice; None while it waits for others, or needs none. `ticket` was never used."""
    record, adjusting = work.record, work.record.adjusting
    if adjusting is None:
        return None
    homes = _homes_used_more(record, state)
    if adjusting.told and adjusting.clients is None:
        _note_clients(work, homes)  # each at once, whatever the others do
    if not all(is_served(grant, state) for grant in record.booking.devices):
        return None
    if homes and not adjusting.renewed:
        stale = (*record.stale_tickets, record.ticket)
        return replace(record, ticket=ticket, stale_tickets=stale, adjusting=replace(adjusting, renewed=True))
    if record.stale_tickets:
        return RemoveTicket(token, record.stale_tickets[0])
    if not adjusting.told:
        return make_ticket(record, state, token)
    if homes and adjusting.clients is None:
        clients = _clients_by_now(work, homes)
        return replace(record, adjusting=replace(adjusting, clients=clients)) if clients is not None else None
    return _to_free(work, adjusting, homes, state, token)


def _to_free(
    work: SliceTask, adjusting: ResizeRecord, homes: list[SharedDeviceTask], state: NodeState, token: int
) -> NextStep:
    """What is left to do until the old size is free; a client counts unless its container is known not to have it."""
    left = _left_of(adjusting.clients or (), homes) if homes else ()
    if left is None:
        return None
    if homes and may_run(work, state) and not work.old_size.restarted:
        return _to_look(work, homes, token) if all(work.old_size.judged.get(pid, True) for pid in left) else None
    if not all(work.old_size.judged.get(pid, False) for pid in left):
        return None
    # Its ticket still has the old size: after a lost journal that would count while its pod runs.
    return replace(work.record, adjusting=ResizeRecord(renewed=adjusting.renewed) if adjusting.counts else None)


def take_result(record: SliceRecord, result: Result) -> SliceRecord | str:
    match result:
        case TicketRefused(message=message):
            return message
        case TicketRemoved():
            return replace(record, stale_tickets=record.stale_tickets[1:])
        case TicketMade() if record.adjusting is not None:
            return replace(record, adjusting=replace(record.adjusting, told=True))
        case _:
            return record


def take_look(work: SliceTask, result: Result, state: NodeState, config: AgentConfig, now: float) -> None:
    """Its containers with a share were listed, or could not be. While all whose share shrank run with the new ticket, a
    kubelet creates no other one. Else one may have been created with the old values, and begin within
    `container_start_s`: what begins later is new, though it may hide its environment (titles are written over it)."""
    seen = work.old_size
    seen.looked = sum(home.looks for home in _homes_used_more(work.record, state))
    if not isinstance(result, TenantsListed):
        return
    seen.first_look = min(seen.first_look, now)
    containers: dict[str, set[str]] = {}
    for each in result.processes:
        containers.setdefault(each.container or str(each.pid), set()).add(each.ticket)
    record, shrank = work.record, {grant.container for grant in _used_more(work.record)}
    told = {ticket_of(record.ticket, each) for each in containers_of(record, state) if each.container in shrank}
    for name, had in containers.items():
        is_new = bool(told & had) or _is_of_another(record, had, shrank)
        if is_new or not seen.are_late:
            seen.containers[name] = is_new or seen.containers.get(name, False)
    pairs = ((each.pid, each.container or str(each.pid)) for each in result.processes)
    seen.judged = {pid: seen.containers.get(name, False) for pid, name in pairs if any(containers[name])}
    seen.are_late = now - seen.first_look >= config.container_start_s
    if all(seen.containers.get(name, not any(had)) for name, had in containers.items()):
        is_ours = all(is_claim_name(claim.name) for claim in record.booking.resource_claims)  # one container each
        seen.restarted = seen.are_late or (is_ours and told <= set().union(*containers.values()))


def _is_of_another(record: SliceRecord, tickets: set[str], shrank: set[str]) -> bool:
    """Whether these tickets are of a container of the slice whose share is as it was."""
    names = (grant.container for grant in record.booking.devices)
    named = {name for name in names if any(ticket.endswith(f"-{name}") for ticket in tickets)}
    return bool(named) and not named & shrank


def _to_look(work: SliceTask, homes: list[SharedDeviceTask], token: int) -> ListTenants | None:
    """The look at its containers, one for each poll of their homes; None until no CDI file has an old ticket."""
    booking, ticket = work.record.booking, work.record.ticket
    files = [work.cdi.get(claim, ()) for claim in work.record.prepared]
    are_new = all(file and all(device.ticket == ticket for device in file) for file in files)
    if not are_new or work.old_size.looked == sum(home.looks for home in homes):
        return None
    return ListTenants(token, booking.owner, shared_claims(booking), tuple(home.record.home for home in homes))


def _used_more(record: SliceRecord) -> list[DeviceGrant]:
    had = record.adjusting.counts if record.adjusting is not None else ()
    pairs = zip(had or record.booking.devices, record.booking.devices, strict=True)
    return [now for was, now in pairs if was.share and now.share and uses_more(was.share, now.share)]


def _homes_used_more(record: SliceRecord, state: NodeState) -> list[SharedDeviceTask]:
    keys = dict.fromkeys(map(shared_device_key, _used_more(record)))
    return [home for key in keys if (home := state.homes.get(key)) is not None]


def _note_clients(work: SliceTask, homes: list[SharedDeviceTask]) -> None:
    """For each home that was polled since: every process of the tenant that was a client then. A poll in flight may
    have begun too early. Later clients do not count: their container got the new values."""
    seen, owners = work.old_size, {work.record.booking.owner, ""}
    for home in homes:
        if home.key in seen.clients:
            continue
        needed = seen.looks.setdefault(home.key, home.looks + 1 + (home.waits_for is not None))
        if home.looks < needed or home.seen is None:
            home.watch = True
        else:
            seen.clients[home.key] = tuple(client.pid for client in home.seen.clients if client.owner in owners)


def _clients_by_now(work: SliceTask, homes: list[SharedDeviceTask]) -> tuple[int, ...] | None:
    if any(home.key not in work.old_size.clients for home in homes):
        return None
    return tuple(dict.fromkeys(pid for home in homes for pid in work.old_size.clients[home.key]))


def _left_of(pids: Iterable[int], homes: list[SharedDeviceTask]) -> tuple[int, ...] | None:
    """Which of these are still clients by each home's last poll; None while one was not polled."""
    looks: list[MpsSeen] = [home.seen for home in homes if home.seen is not None]
    there = {client.pid for seen in looks for client in seen.clients}
    left = tuple(pid for pid in pids if pid in there)
    return left if left or len(looks) == len(homes) else None
