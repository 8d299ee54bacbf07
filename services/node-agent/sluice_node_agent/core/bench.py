"""
Where slices are worked on: which step each needs, and what the result of a step means for it.

It must not read orders: the agent changes a slice's record (through `save`), this carries it out.
"""

from collections.abc import Collection

from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.messages import DeviceGrant
from sluice.contracts.ticket_names import ticket_name
from sluice_node_agent.core import adjusting, making, unmaking
from sluice_node_agent.core.backing_off import back_off, wait_for_end
from sluice_node_agent.core.events import Result, TicketMade
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.instances import NOTHING
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, MakeTicket, OwnInstruction
from sluice_node_agent.core.records import DeviceRecord, SliceRecord, Tombstone
from sluice_node_agent.core.resuming import claims_of, has_changed, resume
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.sending import Sender
from sluice_node_agent.core.warm import WarmOnes
from sluice_node_agent.core.work import Next, Work, pairs, with_device


class Bench:
    """The slices of one node that are not gone, step by step."""

    def __init__(self, run: RunId, rules: Rules, floor: Floor, sender: Sender, warm: WarmOnes) -> None:
        """Begin with no slice."""
        self._run = run
        self._rules = rules
        self.floor = floor
        self._sender = sender
        self._warm = warm
        self._tickets = 0

    def new_ticket(self, allocation: AllocationId) -> str:
        """A ticket's name that was never used: this run's, and counted."""
        return ticket_name(allocation, self._run, self._tickets + 1)

    def save(self, record: SliceRecord | Tombstone) -> None:
        """Put a slice's record in the journal; it waits for that before its next step."""
        if isinstance(record, SliceRecord):
            if record.ticket == self.new_ticket(record.booking.allocation):
                self._tickets += 1
            self._sender.save(record, self.floor.enter(record))
        else:
            self._sender.save(record, self.floor.works.get(record.allocation))

    # -- stepping -------------------------------------------------------------------------------------------------

    def advance(self, work: Work, now: float, *, is_next: bool) -> None:
        """Take the next step of a slice, if there is one. `is_next`: nothing that it has to come after is left."""
        if not work.idle or self._is_in_the_dark(work.record):
            return
        step = self._next_step(work, is_next=is_next)
        match step:
            case None:
                pass
            case SliceRecord() | Tombstone():
                self.save(step)
            case CreateGpuInstance():
                self._create(work, step)
            case DestroyGpuInstance() if work.record.revoked and self._keep(work, step, now):
                pass
            case _:
                self._sender.send(step, work)

    def _is_in_the_dark(self, record: SliceRecord) -> bool:
        """Whether an instance may be there that cannot be seen, because its GPU does not answer since the start."""
        intended = ((grant.gpu, device) for _, grant, device in pairs(record) if device.step == "intended")
        devices = self.floor.devices
        return any(device.gi_id is None and devices.is_dark(gpu) for gpu, device in intended)

    def _next_step(self, work: Work, *, is_next: bool) -> Next:
        record, token = work.record, self._sender.next_token
        ticket = self.new_ticket(work.allocation)
        match record.phase:
            case "planned":
                return making.begin(record, self.floor, ticket) if is_next else None
            case "making":
                return making.next_step(record, self.floor, self._rules, token, ticket)
            case "ready":
                again = making.lost_devices(record, self.floor)
                if again is None and work.ticket_is_wrong and self._has_settled_ticket(record):
                    return making.make_ticket(record, self.floor, token)
                return again or adjusting.next_step(work, self.floor, token, ticket)
            case "degraded":
                return making.to_make_again(record)
            case "undoing" | "unmaking":
                return unmaking.next_step(work, self.floor, token)
            case "failed":
                return None

    def _has_settled_ticket(self, record: SliceRecord) -> bool:
        """Whether it is known what the ticket of a ready slice says: not while its shares become others."""
        devices = self.floor.devices
        if any(devices.is_unknown(grant.gpu) for grant in record.booking.devices):
            return False
        return not record.stale_tickets and (record.adjusting is None or record.adjusting.told)

    def tickets_to_compare(self) -> tuple[MakeTicket, ...]:
        """The tickets that should be there, as they should be."""
        ready = [work.record for work in self.floor.works.values() if work.record.phase == "ready" and work.idle]
        return tuple(making.make_ticket(record, self.floor, 0) for record in ready if self._has_settled_ticket(record))

    def tickets_compared(self, wrong: Collection[str]) -> list[AllocationId]:
        """Note which are not as they should be. Returns whose they are; what was just removed is nobody's."""
        found = [work for work in self.floor.works.values() if work.record.ticket in wrong]
        for work in found:
            work.ticket_is_wrong = work.record.phase == "ready"
        return [work.allocation for work in found if work.ticket_is_wrong]

    def _create(self, work: Work, step: CreateGpuInstance) -> None:
        """Create an instance, or take a warm one. What is warm and in the way goes first."""
        number, grant = _created(work.record, step)
        taken = self._warm.take(grant)
        if taken is not None:
            self.save(with_device(work.record, number, DeviceRecord(step="intended", gi_id=taken)))
            self._warm.taken(grant.gpu, taken)
        elif not self._warm.make_room(grant):
            self._sender.send(step, work)

    def _keep(self, work: Work, step: DestroyGpuInstance, now: float) -> bool:
        """Keep an instance warm instead of destroying it. Its compute instance is gone already."""
        for number, grant, device in pairs(work.record):
            if (grant.gpu, device.gi_id) == (step.gpu, step.gi_id):
                if not self._warm.keep(grant, step.gi_id, self.floor, now):
                    return False
                self.save(with_device(work.record, number, NOTHING))
                return True
        return False

    # -- results --------------------------------------------------------------------------------------------------

    def take_result(self, work: Work, sent: OwnInstruction, result: Result, now: float) -> None:
        """A step of a slice has its result."""
        if isinstance(sent, CreateGpuInstance) and self._warm.may_be_why(
            work, _created(work.record, sent)[1], sent, result
        ):
            return  # a warm instance had an engine: it goes, and the step is taken again
        if work.record.phase == "making":
            ticket = self.new_ticket(work.allocation)
            self.save(making.take_result(work.record, sent, result, ticket, self.floor))
            return
        if work.record.phase == "ready":
            self._take_adjusted(work, result, now)
            return
        outcome = unmaking.take_result(work.record, sent, result, self.floor)
        work.to_terminate = outcome.clients
        if outcome.ends_by_itself:
            wait_for_end(work, outcome.trouble, self._rules, now, outcome.holders)
        elif outcome.trouble:
            work.deserted, work.free_of_holders = False, ()
            back_off(work, outcome.trouble, self._rules, now, outcome.holders or work.holders)
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

    def _take_adjusted(self, work: Work, result: Result, now: float) -> None:
        if isinstance(result, TicketMade):
            work.ticket_is_wrong = False
        adjusted = adjusting.take_result(work.record, result)
        if isinstance(adjusted, str):
            back_off(work, adjusted, self._rules, now)
        else:
            work.recovered()
            if adjusted != work.record:
                self.save(adjusted)

    def was_read(self, works: list[Work]) -> None:
        """A GPU answers (again), or has refused them a step: what was begun on it may be there, or further."""
        if not works:
            return
        homes = (home.record for home in self.floor.homes.values())
        claimed = claims_of((work.record for work in self.floor.works.values()), homes, self.floor.devices)
        for work in works:
            if work.waits_for is None:
                before, work.record = work.record, resume(work.record, self.floor.devices, self.floor.boot_id, claimed)
                if has_changed(before, work.record):
                    self._sender.save(work.record, work)


def _created(record: SliceRecord, step: CreateGpuInstance) -> tuple[int, DeviceGrant]:
    """Which device of a slice an instance is created for."""
    place = (step.gpu, step.start, step.size)
    return next((n, grant) for n, grant, _ in pairs(record) if (grant.gpu, grant.start, grant.size) == place)
