"""Run the limits of a file, beside the pods' core. In each incarnation of the bus requests are published after the
limits, which revoke no earlier grants; that wait is bounded."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from sluice.contracts.bus.events import ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, RunId, SourceName
from sluice.contracts.quotas.limits_file import BYTES_MAX
from sluice.runtime import core_runner, logs, retry, text_files
from sluice.runtime.bus import Bus, BusError
from sluice.runtime.clock import Clock
from sluice.runtime.service import Service
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.limits_source import (
    READS,
    Event,
    LimitsPublished,
    LimitsRead,
    LimitsSource,
    LimitsUnreadable,
)
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.log_writer import log_writer

LOOK_S = 1.0  # Between two reads of a file of at most 64 KiB. An edit counts after the second read that shows it.
SETTLED_S = 2.0  # at the start, a file that was written longer ago than this counts at once: pods wait for it


class LimitsFile(msgspec.Struct, frozen=True):
    """One file, which may be missing. As one may be half-written, two reads in a row must agree."""

    path: Path
    clock: Clock

    async def changes(self) -> AsyncIterator[LimitsRead | LimitsUnreadable]:
        """The content of the file, and each change; or why it cannot be read. Never ends."""
        before: LimitsRead | LimitsUnreadable | None = None
        told = before
        while True:
            seen = await asyncio.to_thread(self.look)
            counts = seen == before or (before is None and await asyncio.to_thread(self._is_settled))
            if counts and seen != told:
                yield seen
                told = seen
            before = seen
            await self.clock.sleep(LOOK_S)

    def _is_settled(self) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return True
        return self.clock.utc().timestamp() - max(found.st_mtime, found.st_ctime) > SETTLED_S

    def look(self) -> LimitsRead | LimitsUnreadable:
        try:
            descriptor = text_files.open_to_read(self.path)
            try:
                return LimitsRead(text_files.read_text(descriptor, os.fstat(descriptor).st_mode, BYTES_MAX))
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return LimitsUnreadable(f"there is no limits file {self.path}", missing=True)
        except OSError as error:
            return LimitsUnreadable(f"the limits file {self.path} cannot be read: {error.strerror or error}")
        except text_files.NotTextError as error:
            return LimitsUnreadable(f"the limits file {self.path} cannot be read: {error}")


FIRST_S = 5.0  # how long pods wait for the limits at most, at the start and after each loss of the broker's disk


class LimitsGate:
    """Delays requests, in each incarnation of the bus, until the limits were published there."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._said: Incarnation | None = None
        self._life: Incarnation | None = None
        self._log = logs.get("limits")

    async def said(self, limits: LimitsPublished) -> None:
        self._said = limits.incarnation

    async def begins(self, reading: ReadingStarted) -> None:
        """Delay the requests of a new incarnation, `FIRST_S` at most: they are published when this returns."""
        if reading.stream is not Stream.STATE or reading.incarnation == self._life:
            return
        self._life = reading.incarnation
        try:
            async with asyncio.timeout(FIRST_S):
                backoff = retry.Backoff(initial_s=0.01, max_s=0.2)
                while not await self._is_said():
                    await self._clock.sleep(backoff.next_s())
        except TimeoutError:
            self._log.warning("requests are published before the limits, which are late", waited_s=FIRST_S)

    async def _is_said(self) -> bool:
        try:
            return await self._bus.incarnation(Stream.BOOK) == self._said
        except (TimeoutError, BusError) as error:  # no such stream yet; readers report lasting errors
            self._log.debug("the incarnation of BOOK is unknown", why=str(error))
            return False


async def publish_limits(
    bus: Bus, service: Service[PodWatcherSettings], run: RunId, source: SourceName, first: LimitsGate
) -> None:
    """Publish the limits of the settings' file until cancelled; `first` is notified when all were published, or there
    are none. Without such a file there is nothing to do."""
    settings, path = service.settings, service.settings.limits_file
    if path is None:
        return
    origin, ttl_s = str(path), settings.closing_ttl_s
    runner: core_runner.CoreRunner[Event] = core_runner.CoreRunner(
        name="limits",
        core=LimitsSource(RunId(f"{run}-limits"), source, origin=origin, closing_ttl_s=ttl_s),
        bus=bus,
        clock=service.clock,
        traces=service.traces,
        readings=READS,
        execute={WriteLogLine: log_writer(), LimitsPublished: core_runner.Executor(first.said, quiet=True)},
        tick_s=settings.tick_s,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_pass_on(LimitsFile(path, service.clock), runner), name="limits file")
        tasks.create_task(runner.run(), name="limits")


async def _pass_on(file: LimitsFile, runner: core_runner.CoreRunner[Event]) -> None:
    async for event in file.changes():
        await runner.offer(event)
