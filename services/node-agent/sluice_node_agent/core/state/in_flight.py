"""Instructions in flight: each with its token and its task, one at a time per GPU and per home; and hung drivers."""

from collections import deque

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import Result
from sluice_node_agent.core.instructions import GpuInstruction, MpsInstruction, OwnInstruction, ReadGpu, SaveJournal
from sluice_node_agent.core.journal_records import Record, Tombstone
from sluice_node_agent.core.state.tasks import Task

QueuedInstruction = GpuInstruction | MpsInstruction


class InFlight:
    """Instructions that are in flight or wait for their GPU or home."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[QueuedInstruction]] = {}
        """Per GPU and per home: the instruction in flight, and those that wait for it."""
        self._sent: dict[int, tuple[OwnInstruction, Task | None]] = {}
        self._token = 0
        self._out: list[OwnInstruction] = []

    @property
    def busy(self) -> bool:
        return bool(self._sent)

    @property
    def next_token(self) -> int:
        return self._token + 1

    def drain(self) -> list[OwnInstruction]:
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
            queue = self._queues.setdefault(_queue_of(instruction), deque())
            queue.append(instruction)
            if len(queue) > 1:
                return
        self._out.append(instruction)

    def save(self, record: Record, job: Task | None) -> None:
        """Save a record in the journal; `job` continues when it is saved."""
        self.send(SaveJournal(self.next_token, record), job)

    def read(self, gpu: GpuUuid) -> None:
        self.send(ReadGpu(self.next_token, gpu), None)

    def out_on_gpus(self) -> dict[GpuUuid, GpuInstruction]:
        first = (queue[0] for queue in self._queues.values())
        return {order.gpu: order for order in first if isinstance(order, GpuInstruction)}

    def is_ending(self, job: Task) -> bool:
        """Whether a task's last record is being saved: none may follow it."""
        found = self._sent.get(job.waits_for) if job.waits_for is not None else None
        return found is not None and isinstance(found[0], SaveJournal) and isinstance(found[0].record, Tombstone)

    def job_of(self, token: int) -> Task | None:
        found = self._sent.get(token)
        return found[1] if found is not None else None

    def take(self, result: Result) -> tuple[OwnInstruction, Task | None] | None:
        """The instruction that a result answers, and its task. None if no such one is in flight (a duplicate)."""
        found = self._sent.pop(result.token, None)
        if found is None:
            return None
        sent, job = found
        if isinstance(sent, QueuedInstruction):
            queue = self._queues[_queue_of(sent)]
            queue.popleft()
            if queue:
                self._out.append(queue[0])
            else:
                del self._queues[_queue_of(sent)]
        if job is not None:
            job.waits_for = None
            job.saving = False
        return found


class HungDrivers:
    """GPUs whose driver does not return from a call: all work waits behind it, so they count as lost."""

    def __init__(self, in_flight: InFlight, config: AgentConfig) -> None:
        self._in_flight = in_flight
        self._patience_s = config.driver_patience_s
        self._since: dict[GpuUuid, tuple[int, float]] = {}
        """Per busy GPU: the token of its call, and when that was first seen."""

    def look(self, now: float) -> dict[GpuUuid, str]:
        """The GPUs whose current call takes too long, with the reason to count them as lost."""
        out = self._in_flight.out_on_gpus()
        self._since = {gpu: self._seen_since(gpu, call, now) for gpu, call in out.items()}
        late = (gpu for gpu, (_, since) in self._since.items() if now - since >= self._patience_s)
        return {gpu: f"{gpu}: its driver does not return from {type(out[gpu]).__name__}" for gpu in late}

    def _seen_since(self, gpu: GpuUuid, call: OwnInstruction, now: float) -> tuple[int, float]:
        known = self._since.get(gpu)
        return known if known is not None and known[0] == call.token else (call.token, now)


def _queue_of(instruction: QueuedInstruction) -> str:
    """A home's name and a GPU's UUID are never equal."""
    return instruction.home if isinstance(instruction, MpsInstruction) else instruction.gpu
