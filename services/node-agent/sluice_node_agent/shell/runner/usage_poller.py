"""
Looks every so often at what the slices of one node are used for, and keeps it for who asks.

It must never be in the way: a GPU that is being worked on is left out until the next time, only GPUs with a slice are
looked at, one after another, and nothing that a look says or fails to say is decided from.
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
from sluice_node_agent.core.device_use import DeviceUse
from sluice_node_agent.core.usage import UsageTracker
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.shell.agent_metrics import USAGE_LOOK_SECONDS, usage_samples
from sluice_node_agent.shell.hami_metrics import hami_samples

Look = Callable[[GpuUuid, Collection[str]], Awaitable[tuple[DeviceUse, ...] | None]]
"""What devices of a GPU are used for; None while the GPU is being worked on. Raises DeviceError."""


class UsagePoller:
    """The watch over one node's slices, for one life of its agent."""

    def __init__(self, core: Agent, look: Look, clock: Clock, *, every_s: float, hami: bool = False) -> None:
        """Look at nothing yet. `every_s` 0: never do. `hami`: show metrics under HAMi's names, too."""
        self._hami = hami
        self._core = core
        self._look = look
        self._clock = clock
        self._every_s = every_s
        self._book = UsageTracker()
        self._refused: dict[GpuUuid, str] = {}
        """What the driver last said of a GPU that could not be looked at."""
        self._log = logs.get("usage")

    async def run(self) -> None:
        """Look until cancelled. Raises RebootedError, as the devices do."""
        if self._every_s == 0:
            return
        await self._clock.sleep(self._every_s * random.random())  # the nodes of one process take turns
        while True:
            await self.look_once()
            await self._clock.sleep(self._every_s)

    async def look_once(self) -> None:
        """Look at each GPU that has a slice, one after another."""
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
        """As it was last seen. The agent must have started."""
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
            self._refused[gpu] = why  # as many as the node has GPUs
            self._log.warning("the use of a GPU cannot be read", gpu=gpu, why=why)
