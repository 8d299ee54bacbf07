"""Runs the slices of a node: the next step of each, and what its result means."""

from collections.abc import Collection

from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.messages import DeviceGrant
from sluice.contracts.ticket_paths import ticket_name
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import Result, TenantsListed, TenantsUnseen, TicketMade
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, MakeTicket, OwnInstruction
from sluice_node_agent.core.journal_records import SliceRecord, Tombstone
from sluice_node_agent.core.recovery.resume import claims_of, has_changed, resume
from sluice_node_agent.core.slices import create, destroy, resize
from sluice_node_agent.core.slices.mig_instance import NO_DEVICE
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SliceTask, back_off, numbered_devices, wait_for_end, with_device
from sluice_node_agent.core.state.warm_pool import WarmPool


class SliceController:
    """The slices of one node that are not gone, step by step."""

    def __init__(self, run: RunId, config: AgentConfig, state: NodeState, in_flight: InFlight, warm: WarmPool) -> None:
        self._run = run
        self._config = config
        self.state = state
        self._in_flight = in_flight
        self._warm = warm
        self._tickets = 0

    def new_ticket(self, allocation: AllocationId) -> str:
        """A ticket's name that was never used: this run's, with a counter."""
        return ticket_name(allocation, self._run, self._tickets + 1)

    def save(self, record: SliceRecord | Tombstone) -> None:
        """Save a slice's record; its next step waits for the journal."""
        if isinstance(record, SliceRecord):
            if record.ticket == self.new_ticket(record.booking.allocation):
                self._tickets += 1
            self._in_flight.save(record, self.state.enter(record))
        else:
            self._in_flight.save(record, self.state.slices.get(record.allocation))

    def advance(self, work: SliceTask, now: float, *, is_next: bool) -> None:
        """Take the next step of a slice, if there is one. `is_next`: all that it comes after is gone."""
        devices = self.state.devices
        if not work.idle or any(devices.may_hide(g.gpu, device) for _, g, device in numbered_devices(work.record)):
            return
        step = self._next_step(work, is_next=is_next)
        match step:
            case None:
                pass
            case SliceRecord() | Tombstone():
                self.save(step)
            case CreateGpuInstance():
                number, grant = _created(work.record, step)
                self._warm.create(grant, step, work, lambda device: self.save(with_device(work.record, number, device)))
            case DestroyGpuInstance() if work.record.revoked and self._keep(work, step, now):
                pass
            case _:
                self._in_flight.send(step, work)

    def _next_step(self, work: SliceTask, *, is_next: bool) -> SliceRecord | Tombstone | OwnInstruction | None:
        record, token = work.record, self._in_flight.next_token
        ticket = self.new_ticket(work.allocation)
        match record.phase:
            case "planned":
                return create.begin(record, self.state, ticket) if is_next else None
            case "making":
                return create.next_step(record, self.state, self._config, token, ticket)
            case "ready":
                again = create.lost_devices(record, self.state)
                if again is None and work.ticket_is_wrong and self._has_settled_ticket(record):
                    return create.make_ticket(record, self.state, token)
                return again or resize.next_step(work, self.state, token, ticket)
            case "degraded":
                return create.to_make_again(record)
            case "undoing" | "unmaking":
                return destroy.next_step(work, self.state, token)
            case "failed":
                return None

    def _has_settled_ticket(self, record: SliceRecord) -> bool:
        """Whether the content of a ready slice's ticket is certain: not during a resize."""
        devices = self.state.devices
        if any(devices.is_unknown(grant.gpu) for grant in record.booking.devices):
            return False
        return not record.stale_tickets and (record.adjusting is None or record.adjusting.told)

    def tickets_to_compare(self) -> tuple[MakeTicket, ...]:
        ready = [work.record for work in self.state.slices.values() if work.record.phase == "ready" and work.idle]
        return tuple(create.make_ticket(record, self.state, 0) for record in ready if self._has_settled_ticket(record))

    def tickets_compared(self, wrong: Collection[str]) -> list[AllocationId]:
        """Note which tickets are wrong. Returns their allocations; a ticket that was just removed has none."""
        found = [work for work in self.state.slices.values() if work.record.ticket in wrong]
        for work in found:
            work.ticket_is_wrong = work.record.phase == "ready"
        return [work.allocation for work in found if work.ticket_is_wrong]

    def _keep(self, work: SliceTask, step: DestroyGpuInstance, now: float) -> bool:
        for number, grant, device in numbered_devices(work.record):
            if (grant.gpu, device.gi_id) == (step.gpu, step.gi_id):
                if not self._warm.keep(grant, step.gi_id, self.state, now):
                    return False
                self.save(with_device(work.record, number, NO_DEVICE))
                return True
        return False

    def take_result(self, work: SliceTask, sent: OwnInstruction, result: Result, now: float) -> None:
        if isinstance(sent, CreateGpuInstance) and self._warm.make_way(
            work, _created(work.record, sent)[1], sent, result
        ):
            return  # a warm instance had the engine: it is destroyed, and the step retried
        if work.record.phase == "making":
            ticket = self.new_ticket(work.allocation)
            self.save(create.take_result(work.record, sent, result, ticket, self.state))
            return
        if work.record.phase == "ready":
            self._take_adjusted(work, result, now)
            return
        outcome = destroy.take_result(work.record, sent, result, self.state)
        work.to_terminate = outcome.clients
        if outcome.ends_by_itself:
            wait_for_end(work, outcome.trouble, self._config, now, outcome.holders)
        elif outcome.trouble:
            work.deserted, work.free_of_holders = False, ()
            back_off(work, outcome.trouble, self._config, now, outcome.holders or work.holders)
        elif outcome.record is not None:
            work.recovered()
            self.save(outcome.record)
        elif outcome.deserted:
            if work.waiting_since is not None:
                work.recovered()
            work.deserted, work.holders = True, ()
        elif outcome.free is not None:
            work.free_of_holders = (*work.free_of_holders, outcome.free)
            work.holders = outcome.holders

    def _take_adjusted(self, work: SliceTask, result: Result, now: float) -> None:
        if isinstance(result, TicketMade):
            work.ticket_is_wrong = False
        elif isinstance(result, TenantsListed | TenantsUnseen):
            resize.take_look(work, result, self.state, self._config, now)
        adjusted = resize.take_result(work.record, result)
        if isinstance(adjusted, str):
            back_off(work, adjusted, self._config, now)
        else:
            work.recovered()
            if adjusted != work.record:
                self.save(adjusted)

    def gpu_read(self, slices: list[SliceTask]) -> None:
        """A GPU answers (again), or has refused a step: steps begun on it may have gone further than recorded."""
        if not slices:
            return
        homes = (home.record for home in self.state.homes.values())
        claimed = claims_of((work.record for work in self.state.slices.values()), homes, self.state.devices)
        for work in slices:
            if work.waits_for is None:
                before, work.record = work.record, resume(work.record, self.state.devices, self.state.boot_id, claimed)
                if has_changed(before, work.record):
                    self._in_flight.save(work.record, work)


def _created(record: SliceRecord, step: CreateGpuInstance) -> tuple[int, DeviceGrant]:
    place = (step.gpu, step.start, step.size)
    return next((n, grant) for n, grant, _ in numbered_devices(record) if (grant.gpu, grant.start, grant.size) == place)
