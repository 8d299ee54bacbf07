"""One instruction per lane at a time, first come first served. Each GPU is a lane, and each MPS daemon's home."""

from collections import deque
from collections.abc import Collection

from sluice_node_agent.core.instructions import GpuInstruction, MpsInstruction

QueuedInstruction = GpuInstruction | MpsInstruction


class DeviceQueues:
    """What is out and what waits, per lane. Lanes do not wait for one another."""

    def __init__(self) -> None:
        """Begin with nothing out."""
        self._out: dict[str, QueuedInstruction] = {}
        self._waiting: dict[str, deque[QueuedInstruction]] = {}

    def send(self, instruction: QueuedInstruction) -> list[QueuedInstruction]:
        """Queue an instruction. Returns it when it may go out now."""
        lane = _queue_of(instruction)
        if lane in self._out:
            self._waiting.setdefault(lane, deque()).append(instruction)
            return []
        self._out[lane] = instruction
        return [instruction]

    def out(self) -> Collection[QueuedInstruction]:
        """What is out now, one of each lane that is busy."""
        return self._out.values()

    def done(self, instruction: QueuedInstruction) -> list[QueuedInstruction]:
        """An instruction that was out has its result. Returns the next one of its lane."""
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
