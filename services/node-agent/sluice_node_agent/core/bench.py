"""
Where slices are worked on: which step each needs, what is out for it, and what its result means.

Each slice has at most one instruction out and each GPU at most one. It must not read orders: the agent changes a
slice's record (through `save`), this carries it out.
"""

from sluice.contracts.ids import AllocationId, GpuUuid, RunId
from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core import making, unmaking
from sluice_node_agent.core.devices import Devices
from sluice_node_agent.core.events import (
    GPU_INSTRUCTIONS,
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuRead,
    JournalSaved,
    OwnInstruction,
    ReadGpu,
    Result,
    SaveJournal,
)
from sluice_node_agent.core.lanes import Lanes
from sluice_node_agent.core.records import Record, SliceRecord, Tombstone
from sluice_node_agent.core.resuming import claims_of, resume
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.work import Next, Work, pairs


class Bench:
    """All slices that are not gone, and the steps that are out for them."""

    def __init__(self, run: RunId, rules: Rules) -> None:
        """Begin with no slice and no GPU."""
        self._run = run
        self._rules = rules
        self.boot_id = ""
        self.devices = Devices()
        self.works: dict[AllocationId, Work] = {}
        self._lanes = Lanes()
        self._sent: dict[int, tuple[OwnInstruction, AllocationId | None]] = {}
        self._token = 0
        self._tickets = 0
        self._out: list[OwnInstruction] = []

    def drain(self) -> list[OwnInstruction]:
        """What to do now."""
        out, self._out = self._out, []
        return out

    # -- sending --------------------------------------------------------------------------------------------------

    def new_ticket(self, allocation: AllocationId) -> str:
        """A ticket's name that was never used: this run's, and counted. The dot is in no allocation id."""
        return f"{allocation}.{self._run}.{self._tickets + 1}"

    def save(self, record: Record) -> None:
        """Put a record in the journal. A slice's own waits for it before its next step."""
        allocation: AllocationId | None = None
        if isinstance(record, SliceRecord):
            allocation = record.booking.allocation
            work = self.works.setdefault(allocation, Work(record))
            if record.ticket == self.new_ticket(allocation):
                self._tickets += 1
            work.record = record
        elif isinstance(record, Tombstone) and record.allocation in self.works:
            allocation = record.allocation
        self._send(SaveJournal(self._token + 1, record), allocation)

    def read(self, gpu: GpuUuid) -> None:
        """Read one GPU anew."""
        self._send(ReadGpu(self._token + 1, gpu), None)

    def _send(self, instruction: OwnInstruction, allocation: AllocationId | None) -> None:
        self._token += 1
        assert instruction.token == self._token
        self._sent[self._token] = (instruction, allocation)
        if allocation is not None:
            work = self.works[allocation]
            work.waits_for = self._token
            work.saving = isinstance(instruction, SaveJournal)
        if isinstance(instruction, GPU_INSTRUCTIONS):
            self._out += self._lanes.send(instruction)
        else:
            self._out.append(instruction)

    # -- stepping -------------------------------------------------------------------------------------------------

    def advance(self, work: Work, *, is_next: bool) -> None:
        """Take the next step of a slice, if there is one. `is_next`: nothing it has to come after is left."""
        if work.waits_for is not None or work.retry_at is not None or self._is_in_the_dark(work.record):
            return
        step = self._next_step(work, is_next=is_next)
        if isinstance(step, (SliceRecord, Tombstone)):
            self.save(step)
        elif step is not None:
            self._send(step, work.allocation)

    def _is_in_the_dark(self, record: SliceRecord) -> bool:
        """Whether an instance may be there that cannot be seen, because its GPU does not answer since the start."""
        intended = ((grant.gpu, device) for _, grant, device in pairs(record) if device.step == "intended")
        return any(device.gi_id is None and not self._healthy_or_absent(gpu) for gpu, device in intended)

    def _healthy_or_absent(self, gpu: GpuUuid) -> bool:
        return self.devices.healthy(gpu) or not self.devices.knows(gpu)

    def _next_step(self, work: Work, *, is_next: bool) -> Next:
        record, token = work.record, self._token + 1
        ticket = self.new_ticket(work.allocation)
        match record.phase:
            case "planned":
                return making.begin(record, self.boot_id, ticket) if is_next else None
            case "making":
                return making.next_step(record, self.devices, self.boot_id, token, ticket)
            case "ready":
                return making.lost_devices(record, self.devices)
            case "degraded":
                return making.to_make_again(record)
            case "undoing" | "unmaking":
                return unmaking.next_step(work, self.devices, self.boot_id, token)
            case "failed":
                return None

    # -- results --------------------------------------------------------------------------------------------------

    def take_result(self, result: Result, now: float) -> tuple[OwnInstruction, list[AllocationId]] | None:
        """
        Take in a result: what it answers, and which slices must be looked at.

        None for a result of nothing that is out (a duplicate).
        """
        found = self._sent.pop(result.token, None)
        if found is None:
            return None
        sent, allocation = found
        if isinstance(sent, GPU_INSTRUCTIONS):
            self._out += self._lanes.done(sent)
        was_healthy = isinstance(sent, ReadGpu) and self.devices.healthy(sent.gpu)
        self._learn(sent, result, allocation)
        if isinstance(sent, ReadGpu):
            there = [w for w in self.works.values() if any(d.gpu == sent.gpu for d in w.record.booking.devices)]
            if not was_healthy:
                self._resume(there)
            return sent, [work.allocation for work in there]
        if allocation is None:
            return sent, []
        work = self.works[allocation]
        work.waits_for = None
        work.saving = False
        if not isinstance(result, JournalSaved):
            self._take_step(work, sent, result, now)
        return sent, [allocation]

    def _resume(self, works: list[Work]) -> None:
        """A GPU answers (again): what was begun on it may be there."""
        claimed = claims_of(work.record for work in self.works.values())
        for work in works:
            if work.waits_for is None:
                work.record = resume(work.record, self.devices, self.boot_id, claimed)

    def _take_step(self, work: Work, sent: OwnInstruction, result: Result, now: float) -> None:
        if work.record.phase == "making":
            self.save(making.take_result(work.record, sent, result, self.new_ticket(work.allocation)))
            return
        outcome = unmaking.take_result(work.record, sent, result)
        if outcome.trouble:
            self._back_off(work, outcome, now)
        elif outcome.record is not None:
            work.recovered()
            self.save(outcome.record)
        elif outcome.free is not None:
            work.free_of_holders = (*work.free_of_holders, outcome.free)

    def _back_off(self, work: Work, outcome: unmaking.Outcome, now: float) -> None:
        """Try again later, ever more slowly, but for ever: only success frees the place."""
        work.failures += 1
        work.trouble, work.holders = outcome.trouble, outcome.holders
        work.free_of_holders = ()
        doubled = self._rules.back_off_first_s * 2 ** min(work.failures - 1, 20)
        work.retry_at = now + min(doubled, self._rules.back_off_max_s)

    def _learn(self, sent: OwnInstruction, result: Result, allocation: AllocationId | None) -> None:
        """What a result says about what is on the GPUs."""
        match sent, result:
            case CreateGpuInstance() as made, GpuInstanceCreated(gi_id=gi_id):
                assert allocation is not None
                self.devices.add(self._granted(allocation, made), gi_id)
            case CreateComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceCreated(uuid=uuid):
                self.devices.name(gpu, gi_id, uuid)
            case DestroyComputeInstance(gpu=gpu, gi_id=gi_id), ComputeInstanceDestroyed():
                self.devices.name(gpu, gi_id, "")
            case DestroyGpuInstance(gpu=gpu, gi_id=gi_id), GpuInstanceDestroyed():
                self.devices.remove(gpu, gi_id)
            case _, GpuRead(report=report):
                self.devices.read(report)
            case ReadGpu(gpu=gpu), DeviceRefused(message=message):
                self.devices.lose(gpu, message)
            case _, DeviceRefused(kind=DeviceErrorKind.GPU_LOST, message=message) if isinstance(sent, GPU_INSTRUCTIONS):
                self.devices.lose(sent.gpu, message)
            case _:
                pass

    def _granted(self, allocation: AllocationId, made: CreateGpuInstance) -> DeviceGrant:
        devices = self.works[allocation].record.booking.devices
        return next(d for d in devices if (d.gpu, d.start, d.size) == (made.gpu, made.start, made.size))
