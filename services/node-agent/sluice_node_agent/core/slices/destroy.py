"""How a slice is destroyed, by a Revoke (which ends in a tombstone) or after a failed creation: ticket and CDI files,
the pod's processes, then each device in reverse: the tenant's processes, compute instance, GPU instance; each result
saved. A share leaves its home, and is gone when that is destroyed or has other tenants. No process of the pod, or of
another one with its claim, may be left, with or without a device: it could open one later, and the same device file may
be a new instance then. An unprepared claim does not prove that: a kubelet unprepares claims of pods whose objects are
gone, although their containers still run (pkg/kubelet/cm/dra/manager.go, reconcileLoop; seen with 1.37). Pure; the
caller retries without end, because only the device frees a place."""

from dataclasses import dataclass

from msgspec.structs import replace

from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core import events, instructions
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord, Tombstone
from sluice_node_agent.core.slices import mig_instance
from sluice_node_agent.core.slices.mig_instance import NO_DEVICE
from sluice_node_agent.core.state import tasks
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import shared_claims

_NAMED_MAX = 5


def next_step(work: tasks.SliceTask, state: NodeState, token: int) -> tasks.NextStep:
    record = work.record
    step = _to_close(record, token)
    if step is not None:
        return step
    for number, grant, device in reversed(tasks.numbered_devices(record)):
        if device.step == "made" and record.lost and not record.revoked:
            continue  # its pod may still use the rest: only what is missing is retried
        if record.revoked and not record.ignores_holders:
            step = _to_empty(work, number, state, token)
            if step is not None:
                return step
        if grant.share is not None and device.step == "made":
            return tasks.without_device(record, number)
        kept = mig_instance.is_kept(grant, device, state.devices)
        step = mig_instance.step_to_unmake(grant, device, token) if not kept else None
        if step is not None:
            return step
    if record.revoked and any(
        _is_being_unmade(state, tasks.shared_device_key(grant)) for grant in record.booking.devices
    ):
        return None  # its home, or what `orphaned_instances` destroys
    return _ended(record)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step: a changed record, or trouble, or neither (no process was found)."""

    record: SliceRecord | None = None
    trouble: str = ""
    holders: tuple[str, ...] = ()
    free: int | None = None
    """The number of a device without processes of the tenant."""
    clients: tuple[int, ...] = ()
    """Processes of the tenant that an MPS server may still serve."""
    deserted: bool = False
    """No process of the pod is left."""
    ends_by_itself: bool = False
    """The trouble is something that ends without us."""


def take_result(
    record: SliceRecord, sent: instructions.OwnInstruction, result: events.Result, state: NodeState
) -> Outcome:
    match result:
        case events.TicketRemoved():
            assert isinstance(sent, instructions.RemoveTicket)
            ticket = "" if record.ticket == sent.ticket else record.ticket
            stale = tuple(ticket for ticket in record.stale_tickets if ticket != sent.ticket)
            return Outcome(replace(record, ticket=ticket, stale_tickets=stale))
        case events.HoldersListed():
            return _take_holders(record, result, _number_of(record, sent), state)
        case events.TenantsListed(processes=processes):
            return _take_tenants(processes)
        case events.TenantsUnseen(message=message):
            return Outcome(trouble=f"cannot see whether processes of its pod are left: {message}")
        case events.MpsClientsTerminated():
            return Outcome()
        case events.TicketRefused(message=message) | events.MpsRefused(message=message):
            return Outcome(trouble=message)
        case events.DeviceRefused(kind=kind, message=message) if isinstance(sent, instructions.ListHolders):
            return Outcome(trouble=f"{kind}: {message}")
    number = _number_of(record, sent)
    device = mig_instance.unmade(record.devices[number], sent, result)
    return Outcome(trouble=device) if isinstance(device, str) else Outcome(tasks.with_device(record, number, device))


def _to_close(record: SliceRecord, token: int) -> instructions.OwnInstruction | None:
    """What is left of its ways into a container; None when no container can start with it any more."""
    for ticket in (record.ticket, *record.stale_tickets):
        if ticket:
            return instructions.RemoveTicket(token, ticket)
    if record.cdi_files:
        return instructions.RemoveCdi(token, record.cdi_files[0])
    return None


def _to_empty(work: tasks.SliceTask, number: int, state: NodeState, token: int) -> instructions.OwnInstruction | None:
    """The next check that no process of the pod is left, and none on this device; None when both are known. Listing the
    pod's processes costs less, so it comes first, except that a server disconnects clients of a shared device before:
    they would compute until their process ends."""
    booking = work.record.booking
    grant, look = booking.devices[number], instructions.ListTenants(token, booking.owner, shared_claims(booking))
    looks_for_pod = may_run(work, state) and not work.deserted and not _lives_on(work, state)
    is_let_go = grant.share is None or (bool(work.holders) and not work.to_terminate)
    if looks_for_pod and is_let_go:
        return look
    step = _to_empty_device(work, number, state, token) if number not in work.free_of_holders else None
    return look if step is None and looks_for_pod else step


def may_run(work: tasks.SliceTask, state: NodeState) -> bool:
    """Whether processes of its pod may be here: not without a kubelet, which every hand-over by claim needs."""
    booking = work.record.booking
    return (state.has_pods or bool(booking.resource_claims)) and bool(booking.owner)


def _lives_on(work: tasks.SliceTask, state: NodeState) -> bool:
    """Whether the same pod has another standing slice here, which its processes may belong to."""
    owner = work.record.booking.owner
    others = (other for other in state.slices.values() if other is not work and other.record.booking.owner == owner)
    return any(_stands(other.record) for other in others)


def _to_empty_device(
    work: tasks.SliceTask, number: int, state: NodeState, token: int
) -> instructions.OwnInstruction | None:
    _, grant, device = tasks.numbered_devices(work.record)[number]
    if grant.share is not None:
        home = state.home_of(grant)
        if device.step != "made" or home is None or home.device.uuid != device.uuid:
            return None
        if _has_another(work, grant, state):
            return None
        if work.to_terminate:
            return instructions.TerminateMpsClients(token, home.home, work.to_terminate)
        return instructions.ListHolders(token, grant.gpu, device.uuid)
    if grant.profile is None:
        # No process can be on a GPU that is absent, and not of this boot.
        is_there = state.devices.knows(grant.gpu) or work.record.boot_id == state.boot_id
        return instructions.ListHolders(token, grant.gpu, str(grant.gpu)) if is_there else None
    return instructions.ListHolders(token, grant.gpu, device.uuid) if device.uuid else None


def _has_another(work: tasks.SliceTask, grant: DeviceGrant, state: NodeState) -> bool:
    """Whether the same pod has another standing share there. One that is being created was never ready."""
    owner = work.record.booking.owner
    return any(
        other is not work and other.record.booking.owner == owner and _stands(other.record) and device.step == "made"
        for other, _, device in state.tenants(tasks.shared_device_key(grant))
    )


def _stands(record: SliceRecord) -> bool:
    return record.phase == "ready" or (record.lost and not record.revoked)


def _is_being_unmade(state: NodeState, key: tasks.SharedDeviceKey) -> bool:
    """Whether a home is being or must be destroyed: its last tenant is gone only when the home is."""
    home = state.homes.get(key)
    return home is not None and (home.record.phase not in {"making", "ready"} or not state.wants_home(key))


def _ended(record: SliceRecord) -> SliceRecord | Tombstone:
    booking = record.booking
    if record.revoked:
        return Tombstone(
            allocation=booking.allocation, request=booking.request, revision=record.revision, cause=record.cause
        )
    if not record.lost:
        return replace(record, phase="failed", devices=tuple(NO_DEVICE for _ in record.devices))
    left = tuple(device if device.step == "made" else NO_DEVICE for device in record.devices)
    return replace(record, phase="degraded", devices=left)


def _number_of(record: SliceRecord, sent: instructions.OwnInstruction) -> int:
    """The device that an instruction was about: the last one that exists, since they are destroyed in reverse."""
    for number, grant, device in reversed(tasks.numbered_devices(record)):
        gpu = getattr(sent, "gpu", None)
        uuid = getattr(sent, "uuid", None)
        gi_id = getattr(sent, "gi_id", None)
        if isinstance(sent, instructions.ListHolders) and (gpu, uuid) == (grant.gpu, _looked_at(grant, device)):
            return number
        if gi_id is not None and (gpu, gi_id) == (grant.gpu, device.gi_id):
            return number
    raise AssertionError(f"{sent} is about no device of {record.booking.allocation}")


def _looked_at(grant: DeviceGrant, device: DeviceRecord) -> str:
    """Where its tenant's processes are listed: for a share or an instance, only if it is on a device."""
    return str(grant.gpu) if grant.profile is None and grant.share is None else device.uuid


def _take_tenants(processes: tuple[events.PodProcess, ...]) -> Outcome:
    if not processes:
        return Outcome(deserted=True)
    stuck = " (waits in the kernel, so that no signal ends it)"
    named = tuple(f"{each.name or 'process'} {each.pid}{stuck if each.in_kernel else ''}" for each in processes)
    shown = ", ".join(named[:_NAMED_MAX]) + (f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else "")
    return Outcome(trouble=f"processes of its pod still run: {shown}", holders=named, ends_by_itself=True)


def _take_holders(record: SliceRecord, result: events.HoldersListed, number: int, state: NodeState) -> Outcome:
    grant = record.booking.devices[number]
    left = [holder for holder in result.holders if _is_in_the_way(holder, record, grant, state)]
    if not left:
        return Outcome(free=number, holders=_named(result.holders))
    theirs = tuple(holder.pid for holder in left if holder.owner == record.booking.owner)
    return Outcome(
        trouble=f"{len(left)} process(es) of the tenant left on {grant.gpu}",
        holders=_named(left),
        clients=theirs if grant.share is not None else (),
    )


def _is_in_the_way(holder: events.Holder, record: SliceRecord, grant: DeviceGrant, state: NodeState) -> bool:
    """Whether a process keeps a slice: its tenant's, or an unknown one unless it only monitors the device."""
    if holder.kind == "mps" and _has_home(grant, state) and holder.owner != record.booking.owner:
        return False  # the home's own server; a tenant may call itself like one
    if _was_to_come_later(record) and holder.owner != record.booking.owner:
        return False  # it belongs to slices that come before it
    if grant.share is None and tasks.is_shared(record.booking):
        return holder.kind != "file"  # of any of its pods
    return holder.owner == record.booking.owner or (not holder.owner and holder.kind != "file")


def _has_home(grant: DeviceGrant, state: NodeState) -> bool:
    """Whether an MPS server there belongs to a home: of its shares, or of the next tenant. After a lost journal a whole
    GPU may be in use by shares since: their server would keep the old booking."""
    return grant.share is not None or (grant.profile is None and tasks.shared_device_key(grant) in state.homes)


def _was_to_come_later(record: SliceRecord) -> bool:
    """Whether it was revoked while it waited for others, and nothing shows that it was begun."""
    return bool(record.after) and not record.boot_id


def _named(holders: tuple[events.Holder, ...] | list[events.Holder]) -> tuple[str, ...]:
    return tuple(f"{holder.name or 'process'} {holder.pid}" for holder in holders)
