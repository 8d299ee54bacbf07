"""What happens to a pod-watcher of a large cluster, and what each costs: time, CPU, memory, bytes."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from factories.broker.nats_server import Broker
from factories.waiting import meanwhile
from factories.words import bound_of, write_of
from perf.kubernetes.objects import node, node_name, other_pod, our_pod
from perf.kubernetes.replay import Replay, serving

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, Stream
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, ContainerDevices, HostFacts, SourceSynced
from sluice.runtime.nats.jetstream_bus import NatsBus

WATCHER = Path(__file__).with_name("watcher.py")
PATIENCE_S = 120.0
IDLE_S = 20.0
BEATS_PER_S = 500
LOOK_S = 0.02
MEMORY = "/dev/shm"
"""Where the broker keeps its streams: its disk is not what is measured."""
SETTLE_S = 5.0
"""What follows from a listing is said in the ticks after it."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int
    others: int
    ours: int
    waiting: int = 0
    """Our pods with a closed gate; no allocator answers them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What something cost the process."""

    events: int
    wall_s: float
    cpu_s: float
    turn_ms: float
    """The longest single step of the core, or time that the event loop was not there for others."""

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / max(1, self.events) * 1e6


@dataclass(slots=True)
class Bus:
    """What was published, and an allocator that binds what it gets."""

    bus: NatsBus
    requests: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    synced: int = 0
    bind: Callable[[str], bool] = lambda _: False
    _number: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        filters = ("sluice.request.>", "sluice.host.>", "sluice.source.>")
        async for batch in self.bus.read(Stream.STATE, filters):
            for event in batch:
                if isinstance(event, Observed):
                    await self._heard(event.entry.subject, event.entry.message)
            self._changed.set()

    async def _heard(self, subject: str, message: object) -> None:
        match message:
            case AllocationRequested() as message:
                uid = subject.rpartition(".")[2]
                self.requests.add(uid)
                if self.bind(uid):
                    await self.grant(uid, message.held.node if message.held is not None else NodeName(node_name(0)))
            case HostFacts():
                self.hosts.add(subject)
            case SourceSynced():
                self.synced += 1

    async def grant(self, uid: str, on: NodeName) -> None:
        self._number += 1
        devices = (ContainerDevices(container="main", visible_devices=f"MIG-{uid.rpartition('-')[2]}"),)
        word = bound_of(uid, on, containers=devices)
        await self.bus.write(write_of(subjects.binding(RequestId(uid)), word, None, f"desk-{self._number}"), {})

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not good():
                self._changed.clear()
                await self._changed.wait()


@dataclass(slots=True)
class Watcher:
    """The process."""

    process: asyncio.subprocess.Process
    seen: psutil.Process
    counted: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    lag_s: float = 0.0
    peak_mib: float = 0.0
    _mark: tuple[float, float] = (0.0, 0.0)

    async def ask(self, *, quiet: bool = False) -> None:
        """Take in what it has counted since the last time; until the next time its loop is not measured if `quiet`."""
        self.process.stdin.write(b"quiet\n" if quiet else b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        if not line:
            raise SystemExit("the pod-watcher has ended")
        told = json.loads(line)
        self.counted.update(told["seen"])
        for what, took in told["longest"].items():
            self.longest[what] = max(took, self.longest.get(what, 0.0))
        self.lag_s, self.peak_mib = max(self.lag_s, told["lag_s"]), told["peak_mib"]

    def cpu_s(self) -> float:
        times = self.seen.cpu_times()
        return float(times.user + times.system)

    def turn_ms(self) -> tuple[float, str]:
        what, longest_s = max(self.longest.items(), key=lambda each: each[1], default=("nothing", 0.0))
        return max(longest_s, self.lag_s) * 1000, what

    async def begin(self, *, quiet: bool = False) -> None:
        await self.ask(quiet=quiet)
        self.counted, self.longest, self.lag_s = Counter(), {}, 0.0
        self._mark = (time.monotonic(), self.cpu_s())

    async def end(self, events: int) -> Cost:
        """What it cost since `begin`."""
        await self.ask()
        wall, cpu = time.monotonic() - self._mark[0], self.cpu_s() - self._mark[1]
        return Cost(events, wall, cpu, self.turn_ms()[0])

    async def until_seen(self, kind: str, count: int) -> None:
        """Wait until it has taken in so many events of a kind since `begin`."""
        async with asyncio.timeout(PATIENCE_S):
            while self.counted[kind] < count:
                await asyncio.sleep(LOOK_S)
                await self.ask()

    async def lives_until(self, awaited: Coroutine[Any, Any, object]) -> None:
        """Wait for something that comes only if the process runs."""
        waiting, ended = asyncio.create_task(awaited), asyncio.create_task(self.process.wait())
        await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not waiting.done():
            waiting.cancel()
            raise TimeoutError
        await waiting

    async def stop(self, *, kill: bool = False) -> None:
        """At once, or in order."""
        if self.process.returncode is None:
            if kill:
                self.process.kill()
            elif self.process.stdin is not None:
                self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 15)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


@dataclass(slots=True)
class Scene:
    """A cluster, a broker, and the services that answer."""

    size: Size
    server: Replay
    bus: Bus
    url: str
    folder: Path
    _runs: int = 0

    @asynccontextmanager
    async def watcher(self, *, kill: bool = False) -> AsyncIterator[Watcher]:
        """A pod-watcher, from the start of its process to its end."""
        self._runs += 1
        command = [sys.executable, str(WATCHER), self.url, str(self.server.kubeconfig), f"w{self._runs}"]
        with (self.folder / "watcher.log").open("ab") as log:
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": log}
            process = await asyncio.create_subprocess_exec(*command, **pipes)
        made = Watcher(process, psutil.Process(process.pid))
        try:
            yield made
        except TimeoutError as error:
            raise SystemExit(f"it has ended, or took over {PATIENCE_S:g} s:\n{self.said()}") from error
        finally:
            await made.stop(kill=kill)

    async def synced(self, watcher: Watcher) -> None:
        """Everything that was listed is on the bus."""
        size, bus = self.size, self.bus

        def is_there() -> bool:
            return bus.synced > 0 and len(bus.requests) >= size.ours and len(bus.hosts) >= size.nodes

        await watcher.lives_until(bus.until(is_there))

    def said(self) -> str:
        return (self.folder / "watcher.log").read_text()[-3000:]


@asynccontextmanager
async def scene(size: Size) -> AsyncIterator[Scene]:
    """A cluster of this size; its bound pods are bound as soon as they ask."""
    bound = size.ours - size.waiting
    ours = [our_pod(each, on=node_name(each % size.nodes) if each < bound else "") for each in range(size.ours)]
    others = [other_pod(each, size.nodes) for each in range(size.others)]
    with tempfile.TemporaryDirectory(prefix="sl-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        async with (
            Broker(Path(name) / "nats") as broker,
            serving(ours, others, [node(each) for each in range(size.nodes)]) as server,
        ):
            connection = await NatsBus.connect(broker.url, name="desk")
            await connection.ensure_streams()
            waits = {f"u-train-{each}" for each in range(bound, size.ours)}
            bus = Bus(connection, bind=lambda uid: uid not in waits)
            try:
                async with meanwhile(bus.listen()):
                    yield Scene(size, server, bus, broker.url, Path(name))
            finally:
                await connection.close()


# -- what is measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """From the start of the process until everything that was listed is on the bus."""

    wall_s: float
    cpu_s: float
    list_mib: float
    resident_mib: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Following:
    """A cluster that is followed for some time."""

    start: Start
    idle: Cost
    beats: Cost
    """Status updates of nodes in which nothing changes, at BEATS_PER_S."""
    others: Cost
    """Status updates of others' pods, as fast as they are taken."""
    ours: Cost
    relist: Cost
    watch_mib: float
    """Of all that was watched."""


async def follow(size: Size, idle_s: float, events: int) -> Following:
    """Start, idle, and each kind of event."""
    async with scene(size) as found:
        began = time.monotonic()
        async with found.watcher() as watcher:
            await found.synced(watcher)
            wall_s, cpu_s, listed_mib = time.monotonic() - began, watcher.cpu_s(), found.server.list_bytes / 2**20
            await watcher.ask()
            start = Start(wall_s, cpu_s, listed_mib, watcher.seen.memory_info().rss / 2**20, watcher.peak_mib)
            await asyncio.sleep(SETTLE_S)
            await watcher.begin(quiet=True)
            await asyncio.sleep(idle_s)
            idle = await watcher.end(0)
            beats = await beating(found, watcher, events)
            others = await changing(found, watcher, "Seen others", events)
            ours = await changing(found, watcher, "Seen pods", events)
            await watcher.begin()
            found.server.forget()
            await watcher.until_seen("ListingEnded", 3)
            await asyncio.sleep(SETTLE_S)
            relist = await watcher.end(size.nodes + size.others + size.ours)
            return Following(start, idle, beats, others, ours, relist, found.server.watch_bytes / 2**20)


async def beating(found: Scene, watcher: Watcher, events: int) -> Cost:
    """Kubelets report that all is as it was."""
    await watcher.begin()
    began = time.monotonic()
    for beat in range(events):
        found.server.put(found.server.nodes, node(beat % found.size.nodes, beat + 1))
        await asyncio.sleep(max(0.0, began + (beat + 1) / BEATS_PER_S - time.monotonic()))
    await watcher.until_seen("Seen nodes", events)
    return await watcher.end(events)


async def changing(found: Scene, watcher: Watcher, kind: str, events: int) -> Cost:
    """Pods change, all at once: made before, so that nothing but the pod-watcher is measured."""
    size, server = found.size, found.server
    if kind == "Seen others":
        shelf = server.others
        made = [other_pod(each % size.others, size.nodes, each + 1) for each in range(events)]
    else:
        shelf = server.ours
        numbers = [each % size.ours for each in range(events)]
        hosts = [node_name(number % size.nodes) for number in numbers]
        made = [our_pod(numbers[at], on=hosts[at], restarts=at + 1) for at in range(events)]
    await watcher.begin()
    for obj in made:
        server.put(shelf, obj)
    await watcher.until_seen(kind, events)
    return await watcher.end(events)


@dataclass(frozen=True, slots=True)
class Restart:
    """A pod-watcher that is killed and started again while many pods wait."""

    first_bound_s: float
    """From the start of the process until a pod that is created meanwhile has its patch."""
    synced_s: float
    """Until all that wait were republished."""
    cpu_s: float
    """Until then."""
    turn_ms: float
    longest_what: str


async def restart(size: Size) -> Restart:
    async with scene(size) as found:
        async with found.watcher(kill=True) as watcher:
            await found.synced(watcher)
        found.bus.synced = 0
        began = time.monotonic()
        found.server.put(found.server.ours, our_pod(size.ours))
        async with found.watcher() as watcher:
            await watcher.lives_until(asyncio.wait_for(found.server.patched.get(), PATIENCE_S))
            first_s = time.monotonic() - began
            await found.bus.until(lambda: found.bus.synced > 0)
            synced_s, cpu_s = time.monotonic() - began, watcher.cpu_s()
            await watcher.ask()
            return Restart(first_s, synced_s, cpu_s, *watcher.turn_ms())
