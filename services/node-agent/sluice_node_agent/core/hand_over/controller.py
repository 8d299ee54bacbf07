"""Hands devices over: prepares a ResourceClaim when the kubelet asks, and takes it back when its pods have ended. A
claim is noted in the journal, its CDI file written, then the kubelet answered: so the journal names every claim that a
pod may have. While it is prepared, its file is written again by each run and after a resize. A call for a slice that is
not ready waits, and every wait ends with an answer."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from sluice.contracts.dra.names import cdi_device, device_names
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Booking, ResourceClaimRef
from sluice_node_agent.core import instructions
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import CdiCompared, CdiRefused, CdiRemoved, PrepareAsked, Result, UnprepareAsked
from sluice_node_agent.core.journal_records import SliceRecord
from sluice_node_agent.core.publish.slice_status import what_is_wrong
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.shared.mps_limits import containers_of
from sluice_node_agent.core.slices.create import is_served, lost_devices
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SliceTask, back_off, numbered_devices


def with_found_claims(record: SliceRecord, found: Discovered) -> SliceRecord:
    """A record new to the journal, with what may be in use: devices that exist, and CDI files."""
    claims = tuple(claim.uid for claim in record.booking.resource_claims)
    files = tuple(claim for claim in claims if claim in found.cdi)
    for claim in files:
        del found.cdi[claim]
    if not files and not record.boot_id:
        return record
    return replace(record, prepared=claims, cdi_files=files)


def cdi_devices(record: SliceRecord, claim: ResourceClaimRef, state: NodeState) -> tuple[instructions.CdiDevice, ...]:
    """What a claim's CDI file holds now: a device for each of its requests that was granted."""
    names = device_names(record.booking.allocation, record.booking.resource_claims)
    containers = {each.container: each for each in containers_of(record, state)}
    return tuple(
        instructions.CdiDevice(
            names[claim.uid, request], containers[key], _parts(record, key, state), claim.shared, record.ticket
        )
        for request, key in sorted(claim.requests.items())
        if key in containers
    )


def prepared_devices(booking: Booking, claim: ResourceClaimRef) -> tuple[instructions.PreparedDevice, ...]:
    """What the kubelet learns of a prepared claim; requests without the alternative that was granted."""
    names = device_names(booking.allocation, booking.resource_claims)
    granted = {grant.container for grant in booking.devices}
    return tuple(
        instructions.PreparedDevice(request.partition("/")[0], name, cdi_device(claim.uid, name))
        for request, key in sorted(claim.requests.items())
        if key in granted and (name := names[claim.uid, request])
    )


def _parts(record: SliceRecord, key: str, state: NodeState) -> tuple[instructions.CdiPart, ...]:
    found = []
    for _, grant, device in numbered_devices(record):
        if grant.container != key:
            continue
        home = state.home_of(grant)
        gi_id = home.device.gi_id if home is not None else device.gi_id
        found.append(instructions.CdiPart(grant.gpu, device.uuid, gi_id if grant.profile is not None else None))
    return tuple(dict.fromkeys(found))


Health = Literal["healthy", "unhealthy", "unknown"]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device of the pool of this node. `message` says what is wrong; empty when nothing is."""

    name: str
    health: Health
    message: str = ""


def device_health(state: NodeState) -> tuple[DeviceHealth, ...]:
    found = []
    for work in state.slices.values():
        booking = work.record.booking
        if booking.resource_claims:
            health, message = _health_of(work, state)
            names = device_names(booking.allocation, booking.resource_claims)
            found += [DeviceHealth(name, health, message) for name in names.values()]
    return tuple(found)


def _health_of(work: SliceTask, state: NodeState) -> tuple[Health, str]:
    record = work.record
    wrong = "; ".join(what_is_wrong(record, state))
    if wrong:
        return "unhealthy", wrong
    if record.phase == "ready":
        return "healthy", ""
    if record.lost and not record.revoked:
        why = f": {record.message}" if record.message else ""
        return "unhealthy", f"its devices vanished, and are not created again yet{why}"
    return "unknown", "it is being taken back" if record.revoked else "it is being created"


@dataclass(frozen=True, slots=True)
class _Call:
    asked: PrepareAsked
    until: float


class HandOver:
    """The kubelet's calls about the claims of one node."""

    def __init__(self, config: AgentConfig, state: NodeState, in_flight: InFlight) -> None:
        self._config = config
        self._state = state
        self._in_flight = in_flight
        self._waiting: dict[str, list[_Call]] = {}
        self._removing: dict[int, UnprepareAsked] = {}
        """Calls that wait for the removal of a file, by its token."""
        self._answers: list[instructions.AnswerCall] = []
        self._compare_at: float | None = 0.0
        """When to compare the files next; None while a comparison is in flight."""

    @property
    def has_waiting(self) -> bool:
        """Whether a call waits for its slice."""
        return bool(self._waiting)

    def drain(self) -> list[instructions.AnswerCall]:
        out, self._answers = self._answers, []
        return out

    def prepare(self, asked: PrepareAsked, now: float) -> list[AllocationId]:
        """The kubelet wants a claim's devices. Returns the slices to look at."""
        if sum(map(len, self._waiting.values())) >= self._config.calls_max:
            self._refuse(asked, f"{self._config.calls_max} claims wait to be prepared already; try again later")
            return []
        self._waiting.setdefault(asked.claim, []).append(_Call(asked, now + self._config.prepare_within_s))
        slices = self._slices_of(asked.claim)
        for work in slices:
            work.cdi.pop(asked.claim, None)  # whatever is there: it may have been lost
        return [work.allocation for work in slices]

    def unprepare(self, asked: UnprepareAsked) -> list[AllocationId]:
        """A claim's pods have ended. Returns the slices to look at. Waits for no step: a driver may hang."""
        self._refuse_all(asked.claim, "the kubelet has ended its use meanwhile")
        slices = self._slices_of(asked.claim)
        for work in slices:
            prepared = tuple(claim for claim in work.record.prepared if claim != asked.claim)
            if prepared != work.record.prepared:
                self._note(work, replace(work.record, prepared=prepared))
            work.cdi.pop(asked.claim, None)
            if work.record.revoked and work.waits_for is None:
                work.retry_at = None  # that may be all it waited for
        order = instructions.RemoveCdi(self._in_flight.next_token, asked.claim)
        self._removing[order.token] = asked
        self._in_flight.send(order, None)
        return [work.allocation for work in slices]

    def tick(self, now: float, why: str) -> None:
        """Answer calls that have waited too long. `why` is the agent's reason to do nothing; empty for none."""
        for claim, calls in [*self._waiting.items()]:
            late = [call for call in calls if call.until <= now]
            for call in late:
                self._refuse(call.asked, self._why_not(claim, why))
            self._keep(claim, [call for call in calls if call not in late])

        if self._compare_at is not None and self._compare_at <= now and self._config.compare_tickets_s:
            self._compare()

    def advance(self, work: SliceTask) -> None:
        booking = work.record.booking
        if not booking.resource_claims:
            return
        if work.record.revoked:
            for claim in booking.resource_claims:
                self._leave_revoked(claim.uid, work)
            return
        if work.record.phase != "ready" or not work.idle or self._why_closed(work.record):
            return
        record = work.record
        wanted = [claim for claim in booking.resource_claims if self._is_wanted(claim, work)]
        uids = tuple(claim.uid for claim in wanted)
        noted = replace(
            record,
            prepared=tuple(dict.fromkeys((*record.prepared, *uids))),
            cdi_files=tuple(dict.fromkeys((*record.cdi_files, *uids))),
        )
        if noted != record:
            self._in_flight.save(noted, self._state.enter(noted))
            return
        for claim in wanted:
            content = cdi_devices(record, claim, self._state)
            if work.cdi.get(claim.uid) != content:
                self._in_flight.send(instructions.WriteCdi(self._in_flight.next_token, claim.uid, content), work)
                return
        for claim in wanted:
            devices = prepared_devices(booking, claim)
            answered = self._waiting.pop(claim.uid, [])
            self._answers += [instructions.AnswerCall(call.asked.call, devices) for call in answered]

    def take_result(
        self, work: SliceTask | None, sent: instructions.CdiInstruction, result: Result, now: float
    ) -> list[AllocationId]:
        """A file was written or removed, or not. Returns the slices to look at."""
        if work is not None and isinstance(result, CdiRefused):
            back_off(work, result.message, self._config, now)
        elif work is not None:
            work.recovered()
        if isinstance(sent, instructions.CompareCdi):
            self._compare_at = now + self._config.compare_tickets_s
            wrong = result.wrong if isinstance(result, CdiCompared) else ()
            pairs = [(claim, each) for claim in wrong for each in self._slices_of(claim)]
            return [each.allocation for claim, each in pairs if each.cdi.pop(claim, None) is not None]
        if isinstance(sent, instructions.WriteCdi):
            if work is not None and not isinstance(result, CdiRefused) and sent.claim in work.record.prepared:
                work.cdi[sent.claim] = sent.devices
            return []
        if isinstance(result, CdiRemoved):
            self._without_file(sent.claim, work)
        asked = self._removing.pop(sent.token, None)
        if asked is not None:
            error = result.message if isinstance(result, CdiRefused) else ""
            self._answers.append(instructions.AnswerCall(asked.call, error=error))
        return [each.allocation for each in self._slices_of(sent.claim)]

    def _compare(self) -> None:
        """As with tickets: their memory disk may be emptied without a reboot."""
        files = tuple(
            instructions.WriteCdi(0, claim, devices)
            for work in self._state.slices.values()
            if work.record.phase == "ready" and work.idle
            for claim, devices in work.cdi.items()
        )
        if files:
            self._compare_at = None
            self._in_flight.send(instructions.CompareCdi(self._in_flight.next_token, files), None)

    def _slices_of(self, claim: str) -> list[SliceTask]:
        slices = self._state.slices.values()
        return [work for work in slices if any(each.uid == claim for each in work.record.booking.resource_claims)]

    def _is_wanted(self, claim: ResourceClaimRef, work: SliceTask) -> bool:
        """Whether a claim's file is to be there, with this slice's devices. Of two slices of a claim one is taken back,
        and the kubelet does not tell which its pod has: the call waits until one is left, and no file of the other."""
        if claim.uid in work.record.prepared:
            return True
        others = [other.record for other in self._slices_of(claim.uid) if other is not work]
        return claim.uid in self._waiting and all(one.revoked and claim.uid not in one.cdi_files for one in others)

    def _note(self, work: SliceTask, record: SliceRecord) -> None:
        """Change a record beside the step that its task may have in flight. Nothing follows a slice's last record."""
        if not self._in_flight.is_ending(work):
            work.record = record
            self._in_flight.save(record, None)

    def _without_file(self, claim: str, work: SliceTask | None) -> None:
        for each in self._slices_of(claim):
            files = tuple(one for one in each.record.cdi_files if one != claim)
            if files == each.record.cdi_files:
                continue
            each.cdi.pop(claim, None)
            changed = replace(each.record, cdi_files=files)
            if each is work:
                self._in_flight.save(changed, self._state.enter(changed))
            else:
                self._note(each, changed)

    def _why_closed(self, record: SliceRecord) -> str:
        """Why nothing of a ready slice can be handed over now; empty when it can."""
        devices = self._state.devices
        for grant in record.booking.devices:
            if not devices.answers(grant.gpu):
                return devices.why_unhealthy(grant.gpu)
        if lost_devices(record, self._state) is not None:
            return "its devices vanished, and have to be created again"
        if not all(is_served(grant, self._state) for grant in record.booking.devices):
            return "its MPS daemon is not ready"
        if record.adjusting is not None and record.adjusting.counts and not record.adjusting.renewed:
            return "it is made smaller, and gets another ticket first"
        return ""

    def _leave_revoked(self, claim: str, work: SliceTask) -> None:
        """Calls for a slice that is taken back are for another one of the claim, or refused."""
        standing = [each for each in self._slices_of(claim) if not each.record.revoked]
        for other in standing if claim in self._waiting else ():
            self.advance(other)
        if not standing and claim in self._waiting:
            self._refuse_all(claim, f"its slice {work.allocation} is being taken back ({work.record.cause})")

    def _why_not(self, claim: str, why: str) -> str:
        standing = [each for each in self._slices_of(claim) if not each.record.revoked]
        work = next(iter(standing), None)
        if len(standing) > 1:
            return f"{len(standing)} slices are booked for it, and all but one are taken back first"
        if work is None:
            return why or "no slice is booked for it on this node; look at the pod's events, and at its claim's status"
        if work.record.phase == "ready":
            reason = self._why_closed(work.record) or work.trouble or "its CDI file is not written yet"
        else:
            reason = work.trouble or work.record.message or "it is still being made"
        return f"its slice {work.allocation} is not ready: {why or reason}"

    def _refuse_all(self, claim: str, why: str) -> None:
        for call in self._waiting.pop(claim, []):
            self._refuse(call.asked, why)

    def _refuse(self, asked: PrepareAsked, why: str) -> None:
        self._answers.append(instructions.AnswerCall(asked.call, error=f"ResourceClaim {asked.name}: {why}"))

    def _keep(self, claim: str, calls: list[_Call]) -> None:
        if calls:
            self._waiting[claim] = calls
        else:
            self._waiting.pop(claim, None)
