"""
What is out: every instruction with its token, whose step it is, and one at a time per GPU and per home.

It numbers, queues and remembers; it must not decide what is sent.
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
    """Instructions that are out or wait for their GPU."""

    def __init__(self) -> None:
        """Begin with nothing out."""
        self._lanes = DeviceQueues()
        self._sent: dict[int, tuple[OwnInstruction, Task | None]] = {}
        self._token = 0
        self._out: list[OwnInstruction] = []

    @property
    def busy(self) -> bool:
        """Whether something is out, or waits for its GPU."""
        return bool(self._sent)

    @property
    def next_token(self) -> int:
        """The token of the instruction that is sent next."""
        return self._token + 1

    def drain(self) -> list[OwnInstruction]:
        """What to do now."""
        out, self._out = self._out, []
        return out

    def send(self, instruction: OwnInstruction, job: Task | None) -> None:
        """Send an instruction that was given the next token. The job waits for it."""
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
        """Put a record in the journal; `job` goes on when it is there."""
        self.send(SaveJournal(self.next_token, record), job)

    def read(self, gpu: GpuUuid) -> None:
        """Read one GPU anew."""
        self.send(ReadGpu(self.next_token, gpu), None)

    def out_on_gpus(self) -> dict[GpuUuid, GpuInstruction]:
        """What each GPU that is busy is busy with."""
        return {order.gpu: order for order in self._lanes.out() if isinstance(order, GPU_INSTRUCTIONS)}

    def job_of(self, token: int) -> Task | None:
        """Whose step an instruction is that is out; None for nobody's."""
        found = self._sent.get(token)
        return found[1] if found is not None else None

    def take(self, result: Result) -> tuple[OwnInstruction, Task | None] | None:
        """What a result answers, and whose step that was. None for a result of nothing that is out (a duplicate)."""
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
