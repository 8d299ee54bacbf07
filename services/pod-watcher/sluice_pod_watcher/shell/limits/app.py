"""Run the limits of a file: their core on the bus, and the file that it follows, beside the pods' core. Requests are
published after the limits, in each incarnation of the bus: a limit does not revoke earlier grants. That wait is
bounded, so that missing limits do not block all pods.
"""

import asyncio
from pathlib import Path

from sluice.contracts.bus.events import ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, RunId, SourceName
from sluice.runtime import logs
from sluice.runtime.bus import Bus, BusError
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.retry import Backoff
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.limits_source import READS, Event, LimitsPublished, LimitsSource
from sluice_pod_watcher.shell.limits.limits_file import LimitsFile
from sluice_pod_watcher.shell.log_writer import log_writer

FIRST_S = 5.0  # how long pods wait for the limits at most, at the start and after each loss of the broker's disk


class LimitsGate:
    """Delays requests, in each incarnation of the bus, until the limits were published there."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._said: Incarnation | None = None
        self._life: Incarnation | None = None
        self._log = logs.get("limits")

    async def said(self, limits: LimitsPublished) -> None:
        """All limits were published in this incarnation."""
        self._said = limits.incarnation

    async def begins(self, reading: ReadingStarted) -> None:
        """Delay the requests of a new incarnation, `FIRST_S` at most: they are published when this returns."""
        if reading.stream is not Stream.STATE or reading.incarnation == self._life:
            return
        self._life = reading.incarnation
        try:
            async with asyncio.timeout(FIRST_S):
                await self._said_by_now()
        except TimeoutError:
            self._log.warning("requests are published before the limits, which are late", waited_s=FIRST_S)

    async def _said_by_now(self) -> None:
        backoff = Backoff(initial_s=0.01, max_s=0.2)
        while not await self._is_said():
            await self._clock.sleep(backoff.next_s())

    async def _is_said(self) -> bool:
        try:
            return await self._bus.incarnation(Stream.BOOK) == self._said
        except (TimeoutError, BusError) as error:  # no such stream yet; readers report lasting errors
            self._log.debug("the incarnation of BOOK is unknown", why=str(error))
            return False


async def publish_limits(
    bus: Bus,
    path: Path,
    *,
    run: RunId,
    source: SourceName,
    closing_ttl_s: int,
    clock: Clock,
    traces: RequestTraces,
    tick_s: float,
    first: LimitsGate,
) -> None:
    """Publish the limits of the file at `path`, until cancelled. The bus is not closed. `run` is that of the pods'
    core. `first` is notified when all were published, or there are none.
    """
    runner: CoreRunner[Event] = CoreRunner(
        name="limits",
        core=LimitsSource(RunId(f"{run}-limits"), source, origin=str(path), closing_ttl_s=closing_ttl_s),
        bus=bus,
        clock=clock,
        traces=traces,
        readings=READS,
        execute={WriteLogLine: log_writer(), LimitsPublished: Executor(first.said, quiet=True)},
        tick_s=tick_s,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_pass_on(LimitsFile(path, clock), runner), name="limits file")
        tasks.create_task(runner.run(), name="limits")


async def _pass_on(file: LimitsFile, runner: CoreRunner[Event]) -> None:
    async for event in file.changes():
        await runner.offer(event)
