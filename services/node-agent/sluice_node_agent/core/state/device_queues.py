"""One instruction in flight per GPU and per MPS daemon's home, in order of arrival."""

from collections import deque
from collections.abc import Collection

from sluice_node_agent.core.instructions import GpuInstruction, MpsInstruction

QueuedInstruction = GpuInstruction | MpsInstruction


class DeviceQueues:
    """In-flight and waiting instructions per queue. Queues are independent."""

    def __init__(self) -> None:
        """Start empty."""
        self._out: dict[str, QueuedInstruction] = {}
        self._waiting: dict[str, deque[QueuedInstruction]] = {}

    def send(self, instruction: QueuedInstruction) -> list[QueuedInstruction]:
        """Queue an instruction. Returns it if it can go out now."""
        lane = _queue_of(instruction)
        if lane in self._out:
            self._waiting.setdefault(lane, deque()).append(instruction)
            return []
        self._out[lane] = instruction
        return [instruction]

    def out(self) -> Collection[QueuedInstruction]:
        """Instructions in flight, one per busy queue."""
        return self._out.values()

    def done(self, instruction: QueuedInstruction) -> list[QueuedInstruction]:
        """An instruction in flight has its result. Returns the next one of its queue."""
        lane = _queue_of(instruction)
        del self._out[lane]
        waiting = self._waiting.get(lane)
        if not waiting:
            return []
        following = waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        self._out[lane] = following
        return [following]


def _queue_of(instruction: QueuedInstruction) -> str:
    """A home's name and a GPU's UUID are never equal."""
    return instruction.home if isinstance(instruction, MpsInstruction) else instruction.gpu
