"""
The process that is measured: the production watch (`watch_cluster`) on a real bus, with a stopwatch around its core.

`python watcher.py NATS_URL KUBECONFIG RUN`. For each line on standard input it writes what it has counted since the
last one, as a line of JSON; at the end of its input it ends. After a line `quiet` the loop is not measured, for
that costs more than an idle pod-watcher; until the next line.
"""

import asyncio
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from sluice.contracts.ids import RunId
from sluice.runtime import logs
from sluice.runtime.clock import SystemClock
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import Seen
from sluice_pod_watcher.core.cluster.watcher import ClusterWatcher
from sluice_pod_watcher.shell.kube import app
from sluice_pod_watcher.shell.kube.client import KubeApi

LOOK_S = 0.02


class Counted(ClusterWatcher):
    """The core, and how long it takes."""

    seen: ClassVar[Counter[str]] = Counter()
    longest: ClassVar[dict[str, float]] = {}
    lag_s = 0.0
    looked_at = asyncio.Event()

    def handle(self, event: Any, now: float) -> Any:
        began = time.thread_time()
        found = super().handle(event, now)
        took = time.thread_time() - began
        kind = f"Seen {event.what}" if isinstance(event, Seen) else type(event).__name__
        Counted.seen[kind] += 1
        if took > Counted.longest.get(kind, 0.0):
            Counted.longest[kind] = took
        return found


async def lag() -> None:
    """CPU time until the loop comes back to a waiting caller: what a ping of the broker would feel."""
    while True:
        await Counted.looked_at.wait()
        await asyncio.sleep(LOOK_S)
        began = time.thread_time()
        await asyncio.sleep(0)
        Counted.lag_s = max(Counted.lag_s, time.thread_time() - began)


def peak_mib() -> float:
    """The most memory that was resident since this program began (getrusage counts that of who started it too)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024


async def report() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        (Counted.looked_at.clear if line == b"quiet\n" else Counted.looked_at.set)()
        told = {"seen": Counted.seen, "longest": Counted.longest, "lag_s": Counted.lag_s, "peak_mib": peak_mib()}
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()
        Counted.seen, Counted.longest, Counted.lag_s = Counter(), {}, 0.0


async def main(url: str, kubeconfig: Path, run: RunId) -> None:
    app.ClusterWatcher = Counted  # type: ignore[misc]  # the one in use is made by watch_cluster
    config = ClusterConfig(mirror_gpus=False)
    bus = await NatsBus.connect(url, name="pod-watcher")
    api = await KubeApi.connect(kubeconfig)
    Counted.looked_at.set()
    watch = app.watch_cluster(bus, api, run=run, config=config, clock=SystemClock(), traces=RequestTraces())
    working = [asyncio.create_task(each) for each in (watch, lag())]
    asking = asyncio.create_task(report())
    try:
        done, _ = await asyncio.wait((asking, *working), return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in (asking, *working):
            each.cancel()
        await asyncio.wait((asking, *working))
        await api.close()
        await bus.close()


if __name__ == "__main__":
    logs.configure(service="pod-watcher", run=sys.argv[3], form="json")
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), RunId(sys.argv[3])))
