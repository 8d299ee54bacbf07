"""Watches one node's devices: waits for the driver's errors, and samples the use of slices at an interval. A GPU with a
step in flight is skipped until the next time, and no decision depends on it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import GpuTroubled, SlicesIdled
from sluice_node_agent.core.usage import DeviceUse, UsageTracker
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.shell.agent_metrics import USAGE_LOOK_SECONDS, usage_samples
from sluice_node_agent.shell.hami_metrics import hami_samples
from sluice_node_agent.shell.nodes.node_backend import WatchTimes

Look = Callable[[GpuUuid, Collection[str]], Awaitable[tuple[DeviceUse, ...] | None]]
"""The use of a GPU's devices; None while a step is in flight there. Raises DeviceError."""


class UsagePoller:
    """Samples one node's slices during one run of its agent."""

    def __init__(
        self,
        core: Agent,
        look: Look,
        clock: Clock,
        *,
        every_s: float,
        offer: Callable[[SlicesIdled], Awaitable[None]],
        hami: bool = False,
    ) -> None:
        """`every_s` 0: never sample. `hami`: HAMi's metrics, too. `offer` gets which slices idle, when that changes."""
        self._offer = offer
        self._idled: dict[AllocationId, int] = {}
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
        now, unix_s = self._clock.monotonic(), self._clock.utc().timestamp()
        idled = self._book.idle_since(self._core.snapshot(), now, unix_s)
        if idled != self._idled:
            self._idled = idled
            await self._offer(SlicesIdled(idled))

    def told(self) -> NodeUsage:
        return self._book.told(self._core.snapshot(), self._every_s, self._clock.monotonic())

    def now(self) -> Iterator[Sample]:
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


T = TypeVar("T")
_PAUSE_S = 0.2
"""After each event: a GPU that never stops reporting is read this often."""
_DEAF_S = 10.0
"""After the driver refused to be watched. GPUs are read periodically in any case."""


async def watch_xids(
    backend: GpuBackend, watch: WatchTimes, offer: Callable[[GpuTroubled], Awaitable[None]], *, node: NodeName
) -> None:
    """Pass on the driver's events until cancelled: then wait for its thread, at most about `watch.wait_s`; 0 needs
    none. Raises RebootedError, as the backend does."""
    log = logs.get("troubles", node=node)
    threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="troubles")
    try:
        while True:
            try:
                if watch.wait_s:
                    gpus = await _uncut(threads, lambda: backend.troubled(watch.wait_s))
                else:
                    gpus = backend.troubled(0.0)
            except DeviceError as error:
                log.warning("the driver reports no errors by itself", why=str(error))
                await asyncio.sleep(_DEAF_S)
                continue
            for gpu in gpus:
                log.info("the driver reported an error", gpu=gpu)
                await offer(GpuTroubled(gpu))
            await asyncio.sleep(max(watch.pause_s, _PAUSE_S if gpus else 0.0))
    finally:
        threads.shutdown(wait=False)


async def _uncut(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """The result of a bounded call. Cancelled, wait for its end: the driver must not be closed under it."""
    running = asyncio.get_running_loop().run_in_executor(threads, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
