"""Many pods at once while the pod-watcher is killed: one slice each, all given back; large dose: `make kube-kills`."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from factories.cluster.cluster_system import SLICES_PER_GPU, ClusterSystem
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import Scene, distinct, scene_on, user_pod
from factories.processes import Process
from fake_kube.server import FakeKube
from fake_kube.store import Change

from sluice.contracts.kube.names import is_granted
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document

PODS = int(os.environ.get("KUBE_KILLS_PODS", "100"))
KILLS = int(os.environ.get("KUBE_KILLS_KILLS", "3"))
REPORT = os.environ.get("KUBE_KILLS_REPORT", "")
"""A file for the figures."""
GPUS_PER_NODE = 8
AT_ONCE = 16
"""Users that create pods side by side."""
BOUND_WITHIN_S = 60.0 + PODS / 5 + 12.0 * KILLS
"""A pod-watcher that takes over waits for its predecessor's lease first."""
LEASE_TTL_S = 2
"""Of the pod-watcher: more runs in the same time."""
NODES = [f"gpu-{number:02}" for number in range(-(-PODS // (SLICES_PER_GPU * GPUS_PER_NODE)))]
SYSTEM = {"gpus": GPUS_PER_NODE, "agents": 2, "watcher": {"LEASE_TTL_S": str(LEASE_TTL_S)}}
AGAIN_S = 0.2
REFUSED_FOR_NOW = range(500, 600)
"""What a user is answered while no webhook is there; a controller tries again."""
PATCHED = ("pods", "pods/status")
What = Literal["created", "opened", "gone", "listed"]


@dataclass(frozen=True, slots=True)
class Point:
    """Kill when so many pods were created, opened or gone; or as soon as a new pod-watcher has listed pods."""

    what: What
    count: int = 0


def points(pods: int, kills: int) -> tuple[list[Point], list[Point]]:
    """When to kill while pods come, and while they go; spread over all of them, no two alike."""
    going = -(-kills // 4) if kills > 1 else 0
    coming = kills - going
    kinds: tuple[What, ...] = ("opened", "created", "opened", "listed")
    draw = random.Random(pods * 1000 + kills)
    shares = sorted(draw.uniform(0.02, 0.95) for _ in range(coming))
    first = [Point(kinds[at % len(kinds)], int(share * pods)) for at, share in enumerate(shares)]
    later = [Point("gone", int(pods * (at + draw.uniform(0.1, 0.9)) / going)) for at in range(going)]
    return first, later


@dataclass
class Observer:
    """The fate of each pod in the API server's store; and which process to kill at which point of it."""

    opened: Counter[str] = field(default_factory=Counter)
    """How often a pod's gate went, by UID."""
    told: Counter[str] = field(default_factory=Counter)
    """How often a pod's grant was written to it."""
    created: int = 0
    gone: int = 0
    point: Point | None = None
    victim: int = 0

    def changed(self, resource: str, change: Change) -> None:
        """In the server's own thread: what has just been stored was not answered yet."""
        if resource != "pods" or change.again:
            return
        before, after = change.before, change.after
        uid = change.last["metadata"]["uid"]
        self.created += before is None
        self.gone += after is None
        if before is not None and after is not None:
            gates = [len(each["spec"].get("schedulingGates") or []) for each in (before, after)]
            self.opened[uid] += gates[1] < gates[0]
            self.told[uid] += _granted(before) != _granted(after)
        self._kill_at_point()

    def arm(self, point: Point, victim: int) -> None:
        """Kill `victim` when that point is reached; at once where it is past."""
        self.point, self.victim = point, victim
        self._kill_at_point()

    def _kill_at_point(self) -> None:
        point = self.point
        if point is not None and self._reached(point.what) >= point.count:
            self.point = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.victim, signal.SIGKILL)

    def _reached(self, what: What) -> int:
        return {"created": self.created, "opened": sum(self.opened.values()), "gone": self.gone, "listed": 0}[what]


def _granted(pod: dict) -> dict[str, str]:
    return {key: text for key, text in (pod["metadata"].get("annotations") or {}).items() if is_granted(key)}


class Storm:
    """Many pods that come and go at once, and a pod-watcher that is killed meanwhile."""

    def __init__(self, scene: Scene, fake: FakeKube, watcher: Process) -> None:
        self.scene, self.fake, self.watcher = scene, fake, watcher
        self.seen = Observer()
        self.refused = 0
        self._patches = {path: scene.patches(path) for path in PATCHED}
        fake.call(lambda: fake.store.listen(self.seen.changed))

    def patches(self, path: str = "pods") -> int:
        """How many writes to pods (or `pods/status`) there were in this storm."""
        return self.scene.patches(path) - self._patches[path]

    async def create(self, names: list[str]) -> None:
        """As many users as AT_ONCE create pods; a refused one tries again."""
        waiting = list(names)

        async def user() -> None:
            while waiting:
                await self._create(waiting.pop())

        async with asyncio.TaskGroup() as users:
            for _ in range(AT_ONCE):
                users.create_task(user())

    async def _create(self, name: str) -> None:
        body = user_pod(name, annotations={"sluice.dev/profile": "1g.5gb"})
        deadline = time.monotonic() + BOUND_WITHIN_S
        while (made := await self.scene.post(body)).code != 201:
            assert made.code in REFUSED_FOR_NOW, made
            assert time.monotonic() < deadline, made
            self.refused += 1
            await asyncio.sleep(AGAIN_S)

    async def kill(self, plan: list[Point]) -> None:
        """Kill the pod-watcher at these points, and start it again each time, at once."""
        for point in plan:
            listings = self.fake.count(verb="list", path="pods")
            if point.what == "listed":
                await self._until(lambda at=listings: self.fake.count(verb="list", path="pods") > at, point)
                self.watcher.kill()
            else:
                self.fake.call(lambda at=point: self.seen.arm(at, self.watcher.pid))
                await self._until(lambda: not self.watcher.runs, point)
            self.watcher.start()

    async def _until(self, condition, point: Point) -> None:
        deadline = time.monotonic() + BOUND_WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"{point} was never reached: {self.seen}\n{self.scene.system.said()}"
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def storm(system: ClusterSystem, cluster: Cluster) -> AsyncIterator[Storm]:
    async with scene_on(system, cluster) as scene:
        yield Storm(scene, scene.fake("its store"), system.process("pod-watcher"))


async def hold_against_the_bus(weather: Storm, names: list[str]) -> None:
    """Every pod runs, started once, on an instance of its own that the inventory shows as its own."""
    scene, nodes = weather.scene, weather.fake.nodes
    pods = await scene.started(len(names), BOUND_WITHIN_S)
    assert sorted(pods) == sorted(names)
    assert distinct(uuid for pod in pods.values() for uuid in scene.devices(pod)) == len(names)
    assert {nodes.starts[pod["metadata"]["uid"], "main"] for pod in pods.values()} == {1}
    owners = {f"{scene.namespace}/{name}": scene.devices(pod) for name, pod in pods.items()}

    def shown() -> bool:
        places = [place for gpu in gpus_document(scene.live.fleet_state).gpus for place in gpu.instances]
        return {place.owner: [place.uuid] for place in places if place.state == "ready"} == owners

    await scene.until(shown, "the inventory to show every pod's instance, and nothing else")
    told = {each.request: (each.state, each.node) for each in pods_document(scene.live.fleet_state).pods}
    assert told == {pod["metadata"]["uid"]: ("bound", pod["spec"]["nodeName"]) for pod in pods.values()}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_pods_at_once_are_written_once_each(system, capsys) -> None:
    """Each further write goes through etcd and to every watcher; a busy cluster feels it."""
    names = [f"pod-{number:03}" for number in range(PODS)]
    async with storm(*system) as weather:
        await weather.create(names)
        await hold_against_the_bus(weather, names)
        patches, conditions = (weather.patches(path) for path in PATCHED)
        say(capsys, f"pods={PODS} kills=0 writes_per_pod={patches / PODS:g} conditions={conditions}")
        assert patches == PODS
        assert set(weather.seen.opened.values()) == set(weather.seen.told.values()) == {1}
        await weather.scene.delete(*names)
        await weather.scene.given_back(BOUND_WITHIN_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_pod_is_lost_or_doubled_when_the_pod_watcher_is_killed(system, capsys) -> None:
    """A node drain or an OOM kill of the pod-watcher would cost pods their slices, or give one to two of them."""
    names = [f"pod-{number:03}" for number in range(PODS)]
    coming, going = points(PODS, KILLS)
    async with storm(*system) as weather:
        async with asyncio.TaskGroup() as together:
            together.create_task(weather.create(names))
            together.create_task(weather.kill(coming))
        await hold_against_the_bus(weather, names)
        opened, told = weather.seen.opened, weather.seen.told
        lost = PODS - sum(count == 1 for count in opened.values())
        doubled = sum(count > 1 for counts in (opened, told) for count in counts.values())
        writes = weather.patches()
        assert (lost, doubled) == (0, 0)
        async with asyncio.TaskGroup() as together:
            together.create_task(weather.scene.delete(*names))
            together.create_task(weather.kill(going))
        await weather.scene.given_back(BOUND_WITHIN_S)
        assert weather.watcher.lives == 1 + KILLS
    say(capsys, f"pods={PODS} kills={KILLS} writes_per_pod={writes / PODS:g} lost={lost} doubled={doubled}")


def say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """A line for the person who runs it: shown, or kept for the end of the run."""
    if REPORT:
        with Path(REPORT).open("a", encoding="utf-8") as report:
            report.write(f"{line}\n")
        return
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
