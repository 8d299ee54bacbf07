"""Runs the limits of a file: their core on the bus, and the file that it follows; beside the pods, apart from them."""

import asyncio
import contextlib
from pathlib import Path

from sluice.contracts.ids import RunId, SourceName
from sluice.runtime import logs
from sluice.runtime.bus import Bus
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.telemetry import TraceBook
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.core.limits import READS, Event, Limits, LimitsSaid
from sluice_pod_watcher.shell.limits_file import LimitsFile
from sluice_pod_watcher.shell.telling import teller

FIRST_S = 5.0
"""So long at most pods wait for the limits at the start: they are no reason to serve nobody."""


async def say_limits(
    bus: Bus,
    path: Path,
    *,
    run: RunId,
    source: SourceName,
    closing_ttl_s: int,
    clock: Clock,
    traces: TraceBook,
    tick_s: float,
    said: asyncio.Event,
) -> None:
    """
    Say what the file at `path` says, until cancelled. The bus is not closed. `run` is that of the pods' core.

    `said` is set when all of it was said for the first time, or there is nothing to say.
    """

    async def tell_said(_wanted: LimitsSaid) -> None:
        said.set()

    runner: CoreRunner[Event] = CoreRunner(
        name="limits",
        core=Limits(RunId(f"{run}-limits"), source, origin=str(path), closing_ttl_s=closing_ttl_s),
        bus=bus,
        clock=clock,
        traces=traces,
        readings=READS,
        execute={Tell: teller(), LimitsSaid: Executor(tell_said, quiet=True)},
        tick_s=tick_s,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_pass_on(LimitsFile(path, clock), runner), name="limits file")
        tasks.create_task(runner.run(), name="limits")


async def wait_for_limits(said: asyncio.Event) -> None:
    """Before pods are asked for: a limit takes nothing away that was granted before it. Bounded."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_S):
            await said.wait()
    if not said.is_set():
        logs.get("limits").warning("pods are asked for before the limits are said", waited_s=FIRST_S)


async def _pass_on(file: LimitsFile, runner: CoreRunner[Event]) -> None:
    async for event in file.changes():
        await runner.offer(event)
