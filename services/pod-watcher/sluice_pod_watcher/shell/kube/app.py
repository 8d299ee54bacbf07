"""Run a cluster's pod-watcher: its core on the bus, and the API server that it watches and writes to."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.bus.events import ReadingStarted
from sluice.contracts.ids import RunId
from sluice.runtime import core_runner, gc_freeze, logs
from sluice.runtime.bus import Bus
from sluice.runtime.clock import Clock
from sluice.runtime.lease import Lease
from sluice.runtime.tracing import core_spans, request_traces
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Continue, Continued, Event, ListedKind, ListingEnded, WallClock
from sluice_pod_watcher.core.cluster.watcher import READS, ClusterWatcher
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.shell.kube import api_writer, client
from sluice_pod_watcher.shell.kube.informers import ClaimInformer, informers
from sluice_pod_watcher.shell.log_writer import log_writer
from sluice_pod_watcher.shell.metrics import pods_of

KINDS: tuple[ListedKind, ...] = ("nodes", "others", "pods")
OVERDUE = 2.0  # a listing older than this many `resync_s` is overdue: pauses and jitter add far less
SLACK_S = 60.0


@dataclass(slots=True)
class WatchStatus:
    """Of one process: whether it watches, and what it has listed since then."""

    clock: Clock
    resync_s: float
    is_watching: bool = False
    _listed: dict[ListedKind, float] = field(default_factory=dict)

    def begins(self) -> None:
        self.is_watching, self._listed = True, {}

    def ends(self) -> None:
        self.is_watching = False

    def offered(self, event: Event) -> None:
        if isinstance(event, ListingEnded):
            self._listed[event.what] = self.clock.monotonic()

    def why_not_ready(self) -> str:
        """Why pods are not followed although they should be, in a sentence; empty when they are, or on standby."""
        if not self.is_watching:
            return ""
        missing = [kind for kind in KINDS if kind not in self._listed]
        if missing:
            return f"it is active, but has not listed yet: {', '.join(missing)} (see the log for the errors)"
        limit_s = self.resync_s * OVERDUE + SLACK_S
        for kind in KINDS:
            age_s = self.clock.monotonic() - self._listed[kind]
            if age_s > limit_s:
                return f"the last listing of {kind} was {age_s:.0f} s ago: the API server does not answer"
        return ""


WALL_CLOCK_S = 15.0  # how often idle pods are looked at: their times are minutes
RELEASE_S = 1.0  # timeout for releasing the lease at the end
EVENTS_MAX = 2_000  # queued objects for the core; beyond that the watches wait, and the API server with them


async def watch_cluster(
    bus: Bus,
    api: client.KubeApi,
    *,
    run: RunId,
    config: ClusterConfig,
    clock: Clock,
    traces: request_traces.RequestTraces,
    resync_s: float = 300.0,
    tick_s: float = 0.5,
    status: WatchStatus | None = None,
    begins: Callable[[ReadingStarted], Awaitable[None]] | None = None,
    holds: Callable[[], bool] = lambda: True,
) -> None:
    """Run on an open bus and API server, until cancelled. Neither is closed. `status` is kept up to date. `begins` is
    awaited before a stream is read. Pods are written to while `holds` is true: this process has the lease."""
    status = status if status is not None else WatchStatus(clock, resync_s)
    writer = api_writer.ApiWriter(api, clock, run, holds)
    if config.hand_over != "tickets":
        writer.claims_wanted.set()
    core = ClusterWatcher(run, config)
    runner: core_runner.CoreRunner[Event] = core_runner.CoreRunner(
        name="pod-watcher",
        core=core,
        bus=bus,
        clock=clock,
        traces=traces,
        readings=READS,
        execute={**writer.executors(), WriteLogLine: log_writer(), Continue: core_runner.Executor(_go_on, quiet=True)},
        tick_s=tick_s,
        events_max=EVENTS_MAX,
        shows=lambda: pods_of(core.phases()),
        phases=(core_spans.SpanPhase("pod seen to gate open", "decided AllocationRequested", "did BindPod"),),
        begins=begins,
    )

    async def offer(event: Event) -> None:
        await runner.offer(event)
        status.offered(event)

    status.begins()
    try:
        if config.mirror_gpus:
            await runner.offer(await writer.gpus())
        async with asyncio.TaskGroup() as tasks:
            for reflector in informers(api, clock, offer, resync_s):
                tasks.create_task(reflector.run(), name=f"watch {reflector.what}")
            claims = ClaimInformer(api, clock, offer, resync_s, writer.claims_wanted)
            tasks.create_task(claims.run(), name="watch claims")
            tasks.create_task(runner.run(), name="core")
            tasks.create_task(_tell_time(clock, runner.offer), name="wall clock")
            tasks.create_task(gc_freeze.freeze_periodically(clock), name="garbage")
    finally:
        status.ends()


async def _tell_time(clock: Clock, offer: Callable[[Event], Awaitable[None]]) -> None:
    while True:
        await offer(WallClock(clock.utc().timestamp()))
        await clock.sleep(WALL_CLOCK_S)


async def _go_on(_wanted: Continue) -> Continued:
    return Continued()


async def watch_by_lease(lease: Lease, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `watch` while the lease is held, and stand by otherwise, until cancelled. The lease only saves double work:
    of two active watches the second's patches are refused."""
    log = logs.get("watch")
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(lease.keep(), name="lease")
        working: asyncio.Task[None] | None = None
        try:
            while True:
                await lease.turns(held=True)
                working = tasks.create_task(watch(), name="watch")
                await lease.turns(held=False)  # a watch that fails ends the group, and this with it
                log.warning("on standby: the lease expired")
                working.cancel()
                await asyncio.wait((working,))
        finally:
            # In this order: no other process begins while this one still writes, and a released lease is not renewed.
            for task in (working, keeping):
                if task is not None:
                    task.cancel()
                    await asyncio.wait((task,))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELEASE_S):  # while the bus is away the lease expires by itself
                    await lease.release()
