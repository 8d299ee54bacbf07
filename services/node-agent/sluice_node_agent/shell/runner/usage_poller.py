"""
Samples the use of one node's slices at an interval, and keeps the last result. A GPU with a step in flight is skipped
until the next time, and no decision depends on it.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Iterator

from sluice.contracts.ids import GpuUuid
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.usage import DeviceUse, UsageTracker
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.shell.agent_metrics import USAGE_LOOK_SECONDS, usage_samples
from sluice_node_agent.shell.hami_metrics import hami_samples

Look = Callable[[GpuUuid, Collection[str]], Awaitable[tuple[DeviceUse, ...] | None]]
"""The use of a GPU's devices; None while a step is in flight there. Raises DeviceError."""


class UsagePoller:
    """Samples one node's slices during one run of its agent."""

    def __init__(self, core: Agent, look: Look, clock: Clock, *, every_s: float, hami: bool = False) -> None:
        """Start without samples. `every_s` 0: never sample. `hami`: export metrics under HAMi's names, too."""
        self._hami = hami
        self._core = core
        self._look = look
        self._clock = clock
        self._every_s = every_s
        self._book = UsageTracker()
        self._refused: dict[GpuUuid, str] = {}
        self._log = logs.get("usage")

    async def run(self) -> None:
        """Sample until cancelled. Raises RebootedError, as the devices do."""
        if self._every_s == 0:
            return
        await self._clock.sleep(self._every_s * random.random())  # spreads the nodes of one process
        while True:
            await self.look_once()
            await self._clock.sleep(self._every_s)

    async def look_once(self) -> None:
        """Sample each GPU that has a slice, one after another."""
        if not self._core.started:
            return
        for gpu, devices in self._book.wanted(self._core.snapshot()).items():
            began = self._clock.monotonic()
            try:
                uses = await self._look(gpu, devices)
            except DeviceError as error:
                self._say(gpu, str(error))
                outcome = "refused"
            else:
                outcome = "read" if uses is not None else "busy"
                if uses is not None:
                    self._refused.pop(gpu, None)
                    self._book.look(self._core.snapshot(), gpu, uses, self._clock.monotonic())
            metrics.observe(USAGE_LOOK_SECONDS, self._clock.monotonic() - began, outcome)

    def told(self) -> NodeUsage:
        """The use at the last sample. The agent must have started."""
        return self._book.told(self._core.snapshot(), self._every_s, self._clock.monotonic())

    def now(self) -> Iterator[Sample]:
        """For `sluice.runtime.prometheus.metrics.collecting_from`."""
        if not self._core.started:
            return
        usage = self.told()
        if self._every_s:
            yield from usage_samples(usage)
        if self._hami:
            yield from hami_samples(self._core.snapshot(), usage)

    def _say(self, gpu: GpuUuid, why: str) -> None:
        if self._refused.get(gpu) != why:
            self._refused[gpu] = why  # one per GPU of the node
            self._log.warning("the use of a GPU cannot be read", gpu=gpu, why=why)
