"""One burst: its pods are created at once and observed until all run, beside what that costs."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from factories.cluster.kubernetes import Cluster, Json
from perf.burst.objects import NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager")
IN_FLIGHT = 32
RUN_WITHIN_S = 240.0
WATCH_S = 100
TAIL_S = 2.0
"""After the last pod runs: events and books that follow it are counted too."""
QUIET_WITHIN_S = 60.0
WRITES = ("create", "update", "patch", "delete")


@dataclass(slots=True)
class Life:
    """Of one pod, by the clock of the observer, in seconds."""

    created: float
    is_gated: bool = False
    opened: float = math.inf
    bound: float = math.inf
    running: float = math.inf


Figures = dict[str, float]
"""What a burst took: the report's rows, in its order."""


class Observer:
    """Creates pods and follows those of the namespace."""

    def __init__(self, kube: Cluster, pods: Sequence[Json]) -> None:
        """None of them is there yet."""
        self._kube, self._pods, self._left = kube, pods, len(pods)
        self.lives: dict[str, Life] = {}
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Returns when all run. Raises SystemExit with what one of the others waits for."""
        version = (await self._kube.get(PODS)).body["metadata"]["resourceVersion"]
        following = asyncio.create_task(self._follow(version))
        slots = asyncio.Semaphore(IN_FLIGHT)
        running = asyncio.create_task(self._done.wait())
        try:
            await asyncio.gather(*(self._create(pod, slots) for pod in self._pods))
            await asyncio.wait((running, following), timeout=RUN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            if not running.done():
                raise SystemExit(f"{self._left} of {len(self._pods)} pods do not run: {await self._why()}")
        finally:
            following.cancel()
            running.cancel()
            await asyncio.wait((following, running))

    async def _create(self, pod: Json, slots: asyncio.Semaphore) -> None:
        async with slots:
            self.lives[pod["metadata"]["name"]] = Life(time.monotonic())
            made = await self._kube.post(PODS, pod)
            if made.code != 201:
                raise SystemExit(f"a pod was refused: {made.message}")

    async def _follow(self, version: str) -> None:
        while True:
            query = {"resourceVersion": version, "timeoutSeconds": WATCH_S}
            async with self._kube.watch(PODS, wait_s=RUN_WITHIN_S, **query) as stream:
                while (event := await stream.next()) is not None:
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._see(event["object"], time.monotonic())

    def _see(self, pod: Json, now: float) -> None:
        life = self.lives[pod["metadata"]["name"]]
        if pod["spec"].get("schedulingGates"):
            life.is_gated = True
        elif life.is_gated:
            life.opened = min(life.opened, now)
        if pod["spec"].get("nodeName"):
            life.bound = min(life.bound, now)
        if pod["status"].get("phase") == "Running" and life.running == math.inf:
            life.running = now
            self._left -= 1
            if not self._left:
                self._done.set()

    async def _why(self) -> str:
        pods = (await self._kube.get(PODS)).items
        waiting = (each["status"] for each in pods if each["status"].get("phase") != "Running")
        return json.dumps(next(waiting, None))


async def measure(
    kube: Cluster, first: Sequence[Json], pods: Sequence[Json], pids: Mapping[str, Sequence[int]], audit: Path
) -> Figures:
    """One burst, after a few pods at first. The namespace is empty before and afterwards."""
    async with kube.opened():
        await Observer(kube, first).run()
        await _empty(kube)
        await _quiet(audit)
        observer, before, at = Observer(kube, pods), _cpu_s(pids), _size(audit)
        await observer.run()
        await asyncio.sleep(TAIL_S)
        after, writes = _cpu_s(pids), _writes(audit, at)
        await _empty(kube)
    lives = observer.lives.values()
    start = min(life.created for life in lives)
    found = {
        "pods/s to bound": len(pods) / (max(life.bound for life in lives) - start),
        "pods/s to running": len(pods) / (max(life.running for life in lives) - start),
    }
    for name, waits in (
        ("create to bound", [life.bound - life.created for life in lives]),
        ("create to running", [life.running - life.created for life in lives]),
        ("gate to running", [life.running - life.opened for life in lives if life.is_gated]),
    ):
        if ordered := sorted(waits):
            found |= {f"{name}, p{part}, s": ordered[math.ceil(part * len(ordered) / 100) - 1] for part in (50, 99)}
    cpu = {name: after[name] - before[name] for name in pids}
    found["CPU, s"] = sum(cpu.values())
    found |= {f"CPU of {name}, s": cpu.pop(name) for name in CONTROL_PLANE}
    if cpu:
        found["CPU of Sluice, s"] = sum(cpu.values())
        found |= {f"CPU of {name}, s": each for name, each in cpu.items()}
    found["writes a pod"] = writes.total() / len(pods)
    return found | {f"writes: {what}": number / len(pods) for what, number in sorted(writes.items())}


async def _empty(kube: Cluster) -> None:
    """Remove pods and claims by force, and wait until they are gone: controllers at their limits would take long."""
    await kube.delete(PODS, {"gracePeriodSeconds": 0})
    await kube.until(lambda: kube.get(PODS), lambda reply: not reply.items)
    await kube.delete(CLAIMS)
    for claim in (await kube.get(CLAIMS)).items:
        await kube.patch(f"{CLAIMS}/{claim['metadata']['name']}", {"metadata": {"finalizers": None}})
    await kube.until(lambda: kube.get(CLAIMS), lambda reply: not reply.items)


async def _quiet(audit: Path) -> None:
    """Wait until nothing but Leases has been written for TAIL_S: what began has settled, what ended is forgotten."""
    async with asyncio.timeout(QUIET_WITHIN_S):
        at = -1
        while at < 0 or _writes(audit, at):
            at = _size(audit)
            await asyncio.sleep(TAIL_S)


def _size(file: Path) -> int:
    return file.stat().st_size


def _cpu_s(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    found = {}
    for name, all_of in pids.items():
        processes = [psutil.Process(pid) for pid in all_of]
        family = [*processes, *(child for each in processes for child in each.children(recursive=True))]
        found[name] = sum(sum(each.cpu_times()[:2]) for each in family)
    return found


def _writes(audit: Path, at: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in audit.read_bytes()[at:].splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef", {})
        if entry["verb"] in WRITES and entry["stage"] == "ResponseComplete" and about.get("resource") != "leases":
            what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
            user = entry["user"]["username"]
            name = "kubelet" if user.startswith("system:node:") else user.rpartition(":")[2]
            found[f"{name} {entry['verb']} {what}"] += 1
    return found
