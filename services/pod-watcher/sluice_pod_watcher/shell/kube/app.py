"""Runs a cluster's pod-watcher: its core on the bus, and the API server that it watches and writes to."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sluice.contracts.ids import RunId
from sluice.runtime import logs
from sluice.runtime.bus import Bus
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import CoreRunner, Executor
from sluice.runtime.lease import Lease
from sluice.runtime.telemetry import TraceBook
from sluice_pod_watcher.core.cluster.cluster import READS, Cluster
from sluice_pod_watcher.core.cluster.events import Event
from sluice_pod_watcher.core.cluster.rules import ClusterRules
from sluice_pod_watcher.core.events import Tell
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.mirroring import GpuObjects
from sluice_pod_watcher.shell.kube.watching import reflectors
from sluice_pod_watcher.shell.kube.writes import Writes

LOOK_S = 0.2
"""How often the lease is looked at: what a holder may go on watching after it has run out."""
EVENTS_MAX = 20_000
"""Objects that wait for the core; then the watches wait, and the API server with them."""


async def watch_cluster(
    bus: Bus,
    api: KubeApi,
    *,
    run: RunId,
    rules: ClusterRules,
    clock: Clock,
    traces: TraceBook,
    resync_s: float = 300.0,
    tick_s: float = 0.5,
) -> None:
    """Run on a bus and an API server that are there, until cancelled. Neither is closed."""
    gpus = GpuObjects(api)
    runner: CoreRunner[Event] = CoreRunner(
        name="pod-watcher",
        core=Cluster(run, rules),
        bus=bus,
        clock=clock,
        traces=traces,
        readings=READS,
        execute={
            **Writes(api, clock, run).executors(),
            **gpus.executors(),
            Tell: Executor(_teller(), key=lambda _: "log", quiet=True),
        },
        tick_s=tick_s,
        events_max=EVENTS_MAX,
    )
    if rules.mirror_gpus:
        await runner.offer(await gpus.list())
    async with asyncio.TaskGroup() as tasks:
        for reflector in reflectors(api, clock, runner.offer, resync_s):
            tasks.create_task(reflector.run(), name=f"watch {reflector.what}")
        tasks.create_task(runner.run(), name="core")


async def watch_by_lease(lease: Lease, clock: Clock, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """
    Run `watch` while the lease is held, and stand by while it is not; until cancelled.

    One that stands by begins with a listing when it takes over. The lease only saves double work: two that watch at
    once write the same words and patches, of which the second is refused.
    """
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lease.keep(), name="lease")
        try:
            while True:
                while not lease.held:
                    await clock.sleep(LOOK_S)
                working = tasks.create_task(watch(), name="watch")
                while lease.held:
                    await clock.sleep(LOOK_S)  # one that fails ends the group, and with it this
                working.cancel()
                await asyncio.wait((working,))
        finally:
            await asyncio.shield(lease.release())


def _teller() -> Callable[[Tell], Awaitable[None]]:
    log = logs.get("pods")

    async def tell(wanted: Tell) -> None:
        line = log.warning if wanted.level == "warning" else log.info
        if wanted.request:
            line(wanted.sentence, request=wanted.request)
        else:
            line(wanted.sentence)

    return tell
