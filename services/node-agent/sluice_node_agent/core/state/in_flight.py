"""
Instructions in flight: each with its token and its task, one at a time per GPU and per home.

It numbers and queues them; the controllers decide what to send.
"""

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.events import Result
from sluice_node_agent.core.instructions import (
    GPU_INSTRUCTIONS,
    GpuInstruction,
    OwnInstruction,
    ReadGpu,
    SaveJournal,
)
from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.core.state.device_queues import DeviceQueues, QueuedInstruction
from sluice_node_agent.core.state.tasks import Task


class InFlight:
    """Instructions that are in flight or wait for their GPU or home."""

    def __init__(self) -> None:
        """Start empty."""
        self._lanes = DeviceQueues()
        self._sent: dict[int, tuple[OwnInstruction, Task | None]] = {}
        self._token = 0
        self._out: list[OwnInstruction] = []

    @property
    def busy(self) -> bool:
        """Whether an instruction is in flight or waits."""
        return bool(self._sent)

    @property
    def next_token(self) -> int:
        """The token of the next instruction."""
        return self._token + 1

    def drain(self) -> list[OwnInstruction]:
        """Instructions to carry out now."""
        out, self._out = self._out, []
        return out

    def send(self, instruction: OwnInstruction, job: Task | None) -> None:
        """Send an instruction that has the next token. Its task waits for it."""
        self._token += 1
        assert instruction.token == self._token
        self._sent[self._token] = (instruction, job)
        if job is not None:
            job.waits_for = self._token
            job.saving = isinstance(instruction, SaveJournal)
        if isinstance(instruction, QueuedInstruction):
            self._out += self._lanes.send(instruction)
        else:
            self._out.append(instruction)

    def save(self, record: Record, job: Task | None) -> None:
        """Save a record in the journal; `job` continues when it is saved."""
        self.send(SaveJournal(self.next_token, record), job)

    def read(self, gpu: GpuUuid) -> None:
        """Read one GPU again."""
        self.send(ReadGpu(self.next_token, gpu), None)

    def out_on_gpus(self) -> dict[GpuUuid, GpuInstruction]:
        """The current instruction of each busy GPU."""
        return {order.gpu: order for order in self._lanes.out() if isinstance(order, GPU_INSTRUCTIONS)}

    def job_of(self, token: int) -> Task | None:
        """The task that an instruction in flight belongs to; None for none."""
        found = self._sent.get(token)
        return found[1] if found is not None else None

    def take(self, result: Result) -> tuple[OwnInstruction, Task | None] | None:
        """The instruction that a result answers, and its task. None if no such one is in flight (a duplicate)."""
        found = self._sent.pop(result.token, None)
        if found is None:
            return None
        sent, job = found
        if isinstance(sent, QueuedInstruction):
            self._out += self._lanes.done(sent)
        if job is not None:
            job.waits_for = None
            job.saving = False
        return found
