"""The status of a slice on the bus, and its report in a pull: derived, never stored. Tombstones keep the closing status
of a gone slice until its readers have it, and are remembered longer than any closing message, so that a late order can
never bring it back (PROTOCOL §5, §8)."""

from typing import Any

from msgspec import convert
from msgspec.structs import replace

from sluice.contracts import messages
from sluice.contracts.ids import AllocationId, GpuUuid
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.journal_records import SliceRecord, Tombstone
from sluice_node_agent.core.shared.mps_limits import containers_of, unheld_clients
from sluice_node_agent.core.state import tasks
from sluice_node_agent.core.state.node_state import NodeState

_NAMED_MAX = 5
"""How many processes a warning names."""


def status_message(work: tasks.SliceTask, state: NodeState, config: AgentConfig) -> messages.SliceMessage | None:
    """The status to publish; None while the last one stands."""
    record = work.record
    stuck = stuck_on(work, state, config)
    if stuck is not None and record.lost and not record.revoked:  # it was bound, and is still wanted
        message = f"its devices vanished, and the rest of them cannot be removed: {stuck.trouble}"
        return _degraded(record, message)
    if stuck is not None:
        return messages.SliceQuarantined(**_about(record), message=stuck.trouble, holders=stuck.holders)
    if record.phase == "ready":
        return _ready_message(record, state, work.trouble if work.ticket_is_wrong else "")
    if record.phase == "making" and (record.lost or any(state.devices.is_dark(gpu) for gpu in _gpus_of(record))):
        return _fault_message(record, state)
    if record.phase == "failed":
        shrinking = _is_shrinking(record)
        return messages.SliceFailed(**_about(record), error=record.error, message=record.message, shrinking=shrinking)
    if record.phase == "degraded":
        message = f"its devices vanished and could not be created again: {record.error}: {record.message}"
        return _degraded(record, message)
    return None


def gone_message(tombstone: Tombstone | messages.Closed, *, closing: bool) -> messages.SliceGone:
    """The last status of a slice."""
    return replace(convert(tombstone, messages.SliceGone, from_attributes=True), closing=closing)


def slice_report(record: SliceRecord, state: messages.SliceState, idle_since: int) -> messages.SliceReport:
    """A slice's report in a pull."""
    return messages.SliceReport(
        booking=record.booking,
        revision=record.revision,
        state=state,
        revoked=record.revoked,
        after=record.after,
        evict=record.evict,
        counts=record.adjusting.counts if record.adjusting is not None else (),
        idle_since=idle_since,
    )


def daemon_report(home: tasks.SharedDeviceTask) -> messages.MpsDaemonReport:
    """The report of a home's MPS daemon in a pull."""
    record = home.record
    return messages.MpsDaemonReport(
        profile=record.profile,
        start=record.start,
        size=record.size,
        device=record.device.uuid,
        namespace=record.namespace,
        uid=record.uid,
        state=_daemon_state(home),
        pid=record.pid,
        clients=len(home.seen.clients) if home.seen is not None and record.phase == "ready" else 0,
        message=_why_out_of_order(home) or record.message or home.trouble,
    )


def stuck_on(work: tasks.SliceTask, state: NodeState, config: AgentConfig) -> tasks.Task | None:
    """What keeps a slice from being destroyed: itself, or the home that it leaves last or that has its place."""
    if work.record.phase not in {"undoing", "unmaking"}:
        return None
    if tasks.is_stuck(work, config):
        return work
    places = map(tasks.shared_device_key, work.record.booking.devices)
    homes = (state.homes[place] for place in places if place in state.homes)
    going = (home for home in homes if is_going(home) or home.record.inherited)
    return next((home for home in going if tasks.is_stuck(home, config)), None)


def is_going(home: tasks.SharedDeviceTask) -> bool:
    """Whether a home is being destroyed."""
    return home.record.phase in {"undoing", "unmaking"}


def is_out_of_order(home: tasks.SharedDeviceTask) -> bool:
    """Whether no new tenant may join a home now."""
    return bool(_why_out_of_order(home))


def what_is_wrong(record: SliceRecord, state: NodeState) -> list[str]:
    """What is wrong with a slice that its pod has, in sentences."""
    wrong = [f"{gpu}: {why}" for gpu in _gpus_of(record) if (why := state.devices.why_unhealthy(gpu))]
    homes = [state.homes[key] for key in dict.fromkeys(tasks.shared_devices_of(record)) if key in state.homes]
    return wrong + [f"{home.record.device.uuid}: {why}" for home in homes if (why := _why_out_of_order(home))]


def _ready_message(
    record: SliceRecord, state: NodeState, no_ticket: str
) -> messages.SliceReady | messages.SliceDegraded | None:
    booking = record.booking
    wrong = _fault_message(record, state)
    if wrong is not None:
        return wrong
    if record.adjusting is not None and not record.adjusting.told:
        return None  # the last status stands: the new sizes do not hold yet
    return messages.SliceReady(
        **_about(record),
        ticket="" if booking.resource_claims else record.ticket,  # its containers mount none
        devices=tuple(
            messages.DeviceState(
                gpu=grant.gpu, profile=grant.profile, start=grant.start, size=grant.size, uuid=device.uuid
            )
            for _, grant, device in tasks.numbered_devices(record)
        ),
        containers=containers_of(record, state),
        warnings=(*_warnings(record, state), *((f"its containers cannot start: {no_ticket}",) if no_ticket else ())),
        shrinking=_is_shrinking(record),
    )


def _fault_message(record: SliceRecord, state: NodeState) -> messages.SliceDegraded | None:
    """The problem of a slice that its pod has, or had; None when there is none."""
    if not _is_wrong(record, state):
        return None
    return _degraded(record, "; ".join(what_is_wrong(record, state)))


def _degraded(record: SliceRecord, message: str) -> messages.SliceDegraded:
    return messages.SliceDegraded(**_about(record), message=message, shrinking=_is_shrinking(record))


def _about(record: SliceRecord) -> dict[str, Any]:
    booking = record.booking
    return {"allocation": booking.allocation, "request": booking.request, "revision": record.revision}


def _is_shrinking(record: SliceRecord) -> bool:
    """Whether more of its shares may be in use than its order allows: a shrink is pending."""
    adjusting = record.adjusting
    return adjusting is not None and (not adjusting.told or bool(adjusting.counts))


def _gpus_of(record: SliceRecord) -> dict[GpuUuid, None]:
    return dict.fromkeys(grant.gpu for grant in record.booking.devices)


def _is_wrong(record: SliceRecord, state: NodeState) -> bool:
    """Whether anything is wrong. Called for every slice often, and usually nothing is."""
    for grant in record.booking.devices:
        if state.devices.why_unhealthy(grant.gpu):
            return True
        home = state.homes.get(tasks.shared_device_key(grant)) if grant.share is not None else None
        if home is not None and _why_out_of_order(home):
            return True
    return False


def _why_out_of_order(home: tasks.SharedDeviceTask) -> str:
    """The problem of the MPS daemon of a home that had been ready; empty when there is none."""
    if home.record.phase == "making" and home.record.restarts:
        return "its MPS daemon died, and is being started again"
    if home.record.phase == "ready" and home.seen is not None and home.seen.fault:
        return f"its MPS server is in fault and takes no new clients: {home.seen.fault}"
    return ""


def _warnings(record: SliceRecord, state: NodeState) -> list[str]:
    found: list[str] = []
    for _, grant, device in tasks.numbered_devices(record):
        home = state.homes.get(tasks.shared_device_key(grant)) if grant.share is not None else None
        if home is None:
            continue
        died = home.record.restarts - device.daemon_restarts
        if died > 0:
            times = "once" if died == 1 else f"{died} times"
            found.append(
                f"the MPS daemon of {device.uuid} died {times} and was started again: "
                "processes that were on it then have lost the device"
            )
        found += [
            f"processes of user {uid} wait for the MPS daemon of {device.uuid}, which serves user "
            f"{home.record.uid}: set securityContext.runAsUser to the user that they run as"
            for uid in (home.seen.waiting if home.seen is not None else ())
        ]
    return found + _unheld(record, state)


def _unheld(record: SliceRecord, state: NodeState) -> list[str]:
    """Processes that compute without the time quota: linked statically, or started without its variables."""
    found = []
    for key in dict.fromkeys(tasks.shared_devices_of(record)) if state.time_quota else ():
        pids = unheld_clients(record.booking.owner, state, key)
        if pids:
            named = ", ".join(map(str, pids[:_NAMED_MAX])) + (" and more" if len(pids) > _NAMED_MAX else "")
            found.append(
                f"QuotaNotEnforced: process {named} on {state.homes[key].record.device.uuid} has not said hello to the "
                "time quota, so nothing holds it to its part of the time (docs/time-quota.md)"
            )
    return found


def slice_state(work: tasks.SliceTask, state: NodeState, config: AgentConfig) -> messages.SliceState:
    """The state of a slice in a pull."""
    phase = work.record.phase
    if phase == "ready":
        return "degraded" if _is_wrong(work.record, state) else phase
    if stuck_on(work, state, config) is not None:
        return "quarantined"
    return "making" if phase == "undoing" else phase


def _daemon_state(home: tasks.SharedDeviceTask) -> messages.DaemonState:
    match home.record.phase:
        case "making":
            return "down" if home.record.restarts else "starting"
        case "ready":
            return "fault" if is_out_of_order(home) else "ready"
        case "failed":
            return "down"
        case "undoing" | "unmaking":
            return "stopping"


class Tombstones(dict[AllocationId, Tombstone]):
    """All tombstones of one node."""

    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        self._config = config
        self._closed_at: dict[AllocationId, float] = {}
        """When each was closed, so that no reader waits for its status; oldest first."""
        self._said: dict[AllocationId, None] = {}
        """Those whose closing status is on the bus, as far as is known."""

    def open_ones(self) -> list[AllocationId]:
        """The gone slices whose closing status was not published yet."""
        return [allocation for allocation in self if allocation not in self._said]

    def recheck(self, now: float) -> None:
        """The bus may have lost what it acknowledged: publish closing statuses again that should still be there."""
        for allocation, since in self._closed_at.items():
            if now - since < self._config.closing_ttl_s:
                self._said.pop(allocation, None)

    def closed_anew(self, allocation: AllocationId) -> None:
        """The ledger repeats that a gone slice is closed: the bus has lost what followed, so publish its closing status
        again."""
        self._said.pop(allocation, None)

    def put(self, stone: Tombstone) -> None:
        """A slice is gone."""
        self[stone.allocation] = stone

    def word(
        self, allocation: AllocationId, *, closed: bool, now: float
    ) -> tuple[messages.SliceGone, int | None] | None:
        """The status of a gone slice and its lifetime in seconds; None when it was published already."""
        stone = self[allocation]
        if not closed:
            self._closed_at.pop(allocation, None)
            self._said.pop(allocation, None)
            return gone_message(stone, closing=False), None
        if allocation in self._said:
            return None
        self._said[allocation] = None
        self._closed_at.setdefault(allocation, now)
        return gone_message(stone, closing=True), self._config.closing_ttl_s

    def forget_old(self, now: float) -> list[AllocationId]:
        """Drop those that no order can refer to any more; returns them."""
        old = []
        for allocation, since in self._closed_at.items():
            if now - since < self._config.tombstone_ttl_s:
                break
            old.append(allocation)
        for allocation in old:
            del self._closed_at[allocation]
            del self[allocation]
            self._said.pop(allocation, None)
        return old
