"""One instruction per GPU at a time, first come first served; different GPUs do not wait for one another."""

from collections import deque

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.events import GpuInstruction


class Lanes:
    """What is out and what waits, per GPU."""

    def __init__(self) -> None:
        """Begin with nothing out."""
        self._out: dict[GpuUuid, GpuInstruction] = {}
        self._waiting: dict[GpuUuid, deque[GpuInstruction]] = {}

    def send(self, instruction: GpuInstruction) -> list[GpuInstruction]:
        """Queue an instruction. Returns it when it may go out now."""
        if instruction.gpu in self._out:
            self._waiting.setdefault(instruction.gpu, deque()).append(instruction)
            return []
        self._out[instruction.gpu] = instruction
        return [instruction]

    def done(self, instruction: GpuInstruction) -> list[GpuInstruction]:
        """An instruction that was out has its result. Returns the next one of its GPU."""
        del self._out[instruction.gpu]
        waiting = self._waiting.get(instruction.gpu)
        if not waiting:
            return []
        following = waiting.popleft()
        if not waiting:
            del self._waiting[instruction.gpu]
        self._out[instruction.gpu] = following
        return [following]
