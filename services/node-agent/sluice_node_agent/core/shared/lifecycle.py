"""How a home is created, kept and destroyed: the device, then its MPS daemon; and in reverse. Pure steps over one
record, as in `slices.create`. The caller passes what the tenants need."""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from sluice_node_agent.core import events, instructions
from sluice_node_agent.core.journal_records import DeviceRecord, MpsLimits, SharedDeviceGone, SharedDeviceRecord
from sluice_node_agent.core.slices import mig_instance
from sluice_node_agent.core.state.devices import Devices, InstanceKey
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import NextSharedDeviceStep, SharedDeviceTask

_CANNOT = {events.DeviceErrorKind.NOT_SUPPORTED, events.DeviceErrorKind.NO_PERMISSION}


@dataclass(frozen=True, slots=True)
class TenantDemand:
    """What a home's tenants need."""

    wanted: bool
    limits: MpsLimits | None
    """Those of the largest of them; None when all are leaving, or their GPU's size is unknown."""
    quotas: tuple[events.QuotaTenant, ...] = ()
    lets_in: bool = False
    """A ticket of one of them still exists, for example from before a reboot, and could not be removed yet."""


def next_step(home: SharedDeviceTask, wish: TenantDemand, state: NodeState, token: int) -> NextSharedDeviceStep:
    record = home.record
    match record.phase:
        case "making":
            return _to_make(home, wish, state, token) if wish.wanted else replace(record, phase="unmaking")
        case "ready":
            is_kept = wish.wanted or record.inherited  # it may not be empty
            return _to_keep(home, wish, state.devices, token) if is_kept else replace(record, phase="unmaking")
        case "undoing" | "unmaking":
            return _to_unmake(home, wish, state.devices, token)
        case "failed":
            return None if wish.wanted else SharedDeviceGone(home=record.home)


def take_result(
    home: SharedDeviceTask, sent: instructions.OwnInstruction, result: events.Result, state: NodeState
) -> SharedDeviceRecord | str | None:
    """The next record, why the step failed, or None when only `home` itself changed."""
    if home.record.phase in {"undoing", "unmaking"}:
        return _unmade(home, sent, result)
    match result:
        case events.HoldersListed(holders=holders):
            assert isinstance(sent, instructions.ListHolders)
            return _take(home.record, sent, holders, state)
        case events.ComputeModeSet():
            home.mode_set = True
            return None
        case events.MpsStarted(pid=pid, started_at=started_at):
            assert isinstance(sent, instructions.StartMps)
            home.watch = False  # it has just answered
            home.seen, home.strangers = None, ()
            return replace(home.record, phase="ready", pid=pid, started_at=started_at, limits=sent.limits)
        case events.MpsLimitsSet():
            assert isinstance(sent, instructions.SetMpsLimits)
            return replace(home.record, limits=sent.limits)
        case events.QuotasSet():
            assert isinstance(sent, instructions.SetQuotas)
            home.quotas = sent.tenants
            return None
        case events.MpsSeen():
            return _seen(home, result)
        case events.MpsRefused() | events.DeviceRefused():
            return _refused(home.record, sent, result)
        case _:
            return _made(home.record, result)


def had_tenants(record: SharedDeviceRecord) -> bool:
    """Whether its daemon was ready once: only a Revoke takes a device from its pods, so it is retried."""
    return record.phase == "making" and record.restarts > 0


def resume(
    record: SharedDeviceRecord, devices: Devices, boot_id: str, claimed: dict[InstanceKey, None]
) -> SharedDeviceRecord:
    """A record of an earlier run, in line with the devices. No instance and no daemon survives a reboot."""
    if record.boot_id != boot_id:
        return replace(record, phase="unmaking", device=mig_instance.NO_DEVICE, daemon=True, pid=0, started_at=0)
    if record.profile is None or not devices.answers(record.gpu) or record.phase == "ready":
        return record
    device = mig_instance.resumed(record, record.device, devices, claimed, making=record.phase == "making")
    return record if device == record.device else replace(record, device=device)


def given_up(home: SharedDeviceTask) -> SharedDeviceRecord:
    """A daemon that has not answered for too long counts as dead: the next start ends what is left of it."""
    home.mode_set = False
    home.seen = None
    return _down(home.record)


def held_against(record: SharedDeviceRecord, found: Iterable[events.FoundMpsHome]) -> SharedDeviceRecord:
    """The record in line with the daemons that run at the start: one that was ready may have died meanwhile."""
    answering = {home.home: (home.pid, home.started_at) for home in found}
    is_down = record.phase == "ready" and answering.get(record.home) != (record.pid, record.started_at)
    return _down(record) if is_down else record


def _to_make(home: SharedDeviceTask, wish: TenantDemand, state: NodeState, token: int) -> NextSharedDeviceStep:
    devices = state.devices
    record = home.record
    vanished = _vanished(record, devices)
    if vanished is not None:
        return vanished
    problem = mig_instance.why_impossible(record, devices)
    if problem is not None:
        return None if had_tenants(record) else _failing(record, *problem)
    if record.profile is None and not record.device.uuid:
        return instructions.ListHolders(token, record.gpu, str(record.gpu))
    if mig_instance.is_to_be_taken(record, record.device, devices):
        take = mig_instance.step_to_take(record, devices, state.claims(), token)
        return _failing(record, *take) if isinstance(take, tuple) else take
    if record.profile is not None and record.device.step == "planned":
        intended = replace(record, device=DeviceRecord(step="intended"))
        return None if devices.is_dark(record.gpu) else intended  # an instance found later would pass for ours
    if record.profile is not None and record.device.step != "made":
        return mig_instance.step_to_make(record, record.device, devices, token)
    if not record.daemon:
        return replace(record, daemon=True)
    if record.profile is None and not home.mode_set:
        return instructions.SetComputeMode(token, record.gpu, exclusive_process=True)
    limits = wish.limits or record.limits
    if limits is None:
        return None  # its first tenant left before it was ready
    uuid, space = record.device.uuid, record.namespace
    return instructions.StartMps(token, record.home, record.gpu, uuid, space, record.uid, limits)


def _made(record: SharedDeviceRecord, result: events.Result) -> SharedDeviceRecord:
    device = mig_instance.made(record.device, result)
    return replace(record, device=device, daemon=record.daemon or device.step == "made")


def _take(
    record: SharedDeviceRecord, listed: instructions.ListHolders, holders: tuple[events.Holder, ...], state: NodeState
) -> SharedDeviceRecord:
    """A whole GPU, or an instance of a fixed layout: nothing is created, but no foreign process may use it."""
    strangers = mig_instance.strangers_of(holders)
    if record.profile is not None:
        found = mig_instance.taken(record, listed.uuid, strangers, state.devices, state.claims())
        return _failing(record, *found) if isinstance(found, tuple) else replace(record, device=found)
    if strangers:
        return _failing(record, str(events.DeviceErrorKind.IN_USE), f"{record.gpu} is used by {', '.join(strangers)}")
    return replace(record, device=DeviceRecord(step="made", uuid=str(record.gpu)), daemon=True)


def _refused(
    record: SharedDeviceRecord, sent: instructions.OwnInstruction, refusal: events.MpsRefused | events.DeviceRefused
) -> SharedDeviceRecord | str:
    """A new home is given up. One that pods use, or used, is retried, and so are limits and polls."""
    if isinstance(refusal, events.MpsRefused):
        is_tried_again = had_tenants(record) or isinstance(
            sent, (instructions.SetMpsLimits, instructions.SetQuotas, instructions.WatchMps)
        )
        return refusal.message if is_tried_again else _failing(record, "MpsRefused", refusal.message)
    if had_tenants(record):
        return f"{refusal.kind}: {refusal.message}"
    device = mig_instance.after_refusal(record.device, sent, refusal.kind)
    return _failing(replace(record, device=device), str(refusal.kind), refusal.message)


def _failing(record: SharedDeviceRecord, error: str, message: str) -> SharedDeviceRecord:
    return replace(record, phase="undoing", error=error, message=message)


def _to_keep(home: SharedDeviceTask, wish: TenantDemand, devices: Devices, token: int) -> NextSharedDeviceStep:
    record = home.record
    vanished = _vanished(record, devices)
    if vanished is not None:
        return vanished
    if home.watch:
        return instructions.WatchMps(token, record.home, record.pid, record.started_at, record.uid)
    if wish.quotas != home.quotas:
        return instructions.SetQuotas(token, record.home, wish.quotas)
    if wish.limits is None or wish.limits == record.limits:
        return None
    if record.limits is not None:
        return replace(record, limits=None)  # unknown until they are set; no tenant joins meanwhile
    return instructions.SetMpsLimits(token, record.home, wish.limits)


def _vanished(record: SharedDeviceRecord, devices: Devices) -> SharedDeviceRecord | None:
    """A home whose instance is gone or not ours any more: the rest of it is destroyed."""
    if record.profile is None or record.device.step != "made" or not devices.answers(record.gpu):
        return None
    found = devices.instance(record.gpu, record.device.gi_id)
    if found is None or not mig_instance.is_at(record, record.device, devices):
        return replace(record, phase="unmaking", device=mig_instance.NO_DEVICE)
    if found.uuid != record.device.uuid:
        is_ours = not found.uuid and not mig_instance.is_kept(record, record.device, devices)
        there = replace(record.device, uuid="") if is_ours else mig_instance.NO_DEVICE
        return replace(record, phase="unmaking", device=there)
    return None


def _seen(home: SharedDeviceTask, seen: events.MpsSeen) -> SharedDeviceRecord | None:
    """A daemon that died is restarted: its device exists, and tenants may come back to it."""
    home.watch = False
    home.unanswered = 0
    home.seen = seen
    home.looks += 1
    silent = _silent_in(seen)
    home.unheld, home.silent = silent & home.silent, silent
    if seen.quota is not None and not seen.quota.alive:
        home.quotas = ()  # it starts empty, and gets all of them
    if seen.alive:
        return None
    home.mode_set = False
    return _down(home.record)


def _silent_in(seen: events.MpsSeen) -> frozenset[int]:
    """Clients without a HELLO to the token scheduler, where those with one can be told apart."""
    if seen.quota is None or 0 in seen.quota.greeted:
        return frozenset()
    return frozenset(client.pid for client in seen.clients) - frozenset(seen.quota.greeted)


def _down(record: SharedDeviceRecord) -> SharedDeviceRecord:
    return replace(record, phase="making", pid=0, started_at=0, restarts=record.restarts + 1)


def _to_unmake(home: SharedDeviceTask, wish: TenantDemand, devices: Devices, token: int) -> NextSharedDeviceStep:
    record = home.record
    if record.daemon and wish.lets_in:
        return None  # a container without the daemon's directory would compute beside the next tenant
    if record.daemon and not home.stopped:
        return instructions.StopMps(token, record.home, record.pid, record.started_at)
    if record.daemon and record.profile is None and devices.knows(record.gpu):
        return instructions.SetComputeMode(token, record.gpu, exclusive_process=False)
    if record.daemon:
        return replace(record, daemon=False, pid=0, started_at=0)
    if record.profile is not None and not mig_instance.is_kept(record, record.device, devices):
        step = mig_instance.step_to_unmake(record, record.device, token)
        if step is not None:
            return step
    if record.phase == "unmaking":
        return SharedDeviceGone(home=record.home)
    return replace(record, phase="failed", device=mig_instance.NO_DEVICE)


def _unmade(
    home: SharedDeviceTask, sent: instructions.OwnInstruction, result: events.Result
) -> SharedDeviceRecord | str | None:
    record = home.record
    match result:
        case events.MpsStopped():
            home.stopped = True
            return None if record.profile is None else replace(record, daemon=False, pid=0, started_at=0)
        case events.ComputeModeSet():
            return replace(record, daemon=False, pid=0, started_at=0, device=mig_instance.NO_DEVICE)
        case events.DeviceRefused(kind=kind, message=message) if isinstance(sent, instructions.SetComputeMode):
            gone = replace(record, daemon=False, pid=0, started_at=0, device=mig_instance.NO_DEVICE)
            return gone if kind in _CANNOT else f"{kind}: {message}"  # a mode that could not be set needs no reset
        case events.MpsRefused(message=message):
            return message
        case _:
            device = mig_instance.unmade(record.device, sent, result)
            return device if isinstance(device, str) else replace(record, device=device)
