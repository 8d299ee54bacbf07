"""
Runs a benchmark: puts the load into a system's folder, waits, and reads the results from the history.

The system is a new one with instant simulated devices, or the running `sluice up`. All pods are removed afterwards,
also after errors.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from sluice.contracts.bus.codec import Undecodable, encode
from sluice.contracts.bus.subjects import node_token
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AllocationRequested, Bound, Grant, Pending, Refused, RequestRejected, Revoke
from sluice.runtime.nats.history import open_history
from sluice_console.core.bench import load
from sluice_console.core.bench.broker_replay import ReplayMessage, replay_of
from sluice_console.core.bench.figures import (
    BenchDocument,
    hops_of,
    overcommitted,
    overcommitted_ever,
    request_times,
    time_s,
)
from sluice_console.core.bench.load import BenchFile, BenchPod, LoadError
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.core.process_plan import shared_out
from sluice_console.shell.bench.bare_broker import ceiling
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.live.connect import connected, user_of_the_bus
from sluice_console.shell.live.live_fleet import LiveFleet, following
from sluice_console.shell.live.running_systems import RunningSystem, find_running
from sluice_console.shell.process.end_by_signal import ended_by_signal
from sluice_console.shell.process.system import System, SystemOptions

READY_WITHIN_S = 120.0
CALM_S, CALM_WITHIN_S = 1.0, 20.0
"""A new system is measured after CALM_S of silence: 200 nodes publish for a second or two after their adoption, which
would delay the first pods."""
LOOK_S = 0.1
"""How often bindings are counted. Each count reads all last values, on the cores under measurement."""
GONE_AFTER_S = 5.0
"""Of a workload: a pod that left so long ago is not waited for."""
STILL_S = 15.0
"""So long after the last binding, pods that wait beside pods that stay are pods that do not fit."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The arguments."""

    requests: int
    rate: float
    burst: int
    mix: str
    replay: Path | None
    speed: float
    nodes: int
    gpus: int
    model: str
    processes: int
    running: bool
    with_ceiling: bool
    within_s: float


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A system under load."""

    live: LiveFleet
    nats_url: str
    pods_dir: Path
    agents: dict[str, int]
    """The agent process of each node, by the node's token in subjects."""


@dataclass(frozen=True, slots=True)
class Result:
    """The figures, and single times in s for the chart."""

    document: BenchDocument
    ours_s: list[float]
    bare_s: list[float]


async def bench(asked: BenchOptions, say: Callable[[str], None]) -> Result:
    """Measure. Raises UsageError, StoppedError, BusError; stops and removes everything."""
    with ended_by_signal("what it brought is taken away again"):
        return await _whole(asked, say)


async def _whole(asked: BenchOptions, say: Callable[[str], None]) -> Result:
    run = f"bench-{os.getpid()}"
    try:
        pods = await asyncio.to_thread(_pods, run, asked)
        async with _target(asked, say) as target:
            say(f"{len(pods)} pods come to {len(target.agents)} nodes ...")
            measured = await _measure(target, pods, asked, say)
    except LoadError as error:
        raise UsageError(str(error)) from error
    # The bare broker gets the machine for itself: two hundred idle agents would slow it down and flatter us.
    return await _compared(measured, asked, say)


def _pods(run: str, asked: BenchOptions) -> list[BenchPod]:
    if asked.replay is None:
        return load.even(run, requests=asked.requests, mix=asked.mix, rate=asked.rate, burst=asked.burst)
    try:
        with asked.replay.open(encoding="utf-8") as lines:
            return load.replayed(run, lines, speed=asked.speed, requests=asked.requests)
    except OSError as error:
        raise LoadError(f"--replay {asked.replay} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"--replay {asked.replay} cannot be read: {error}") from error


@asynccontextmanager
async def _target(asked: BenchOptions, say: Callable[[str], None]) -> AsyncIterator[BenchTarget]:
    if asked.running:
        found = await asyncio.to_thread(find_running)
        async with connected(found.nats_url) as bus, following(bus) as live:
            await live.until(
                lambda fleet_state: fleet_state, within_s=READY_WITHIN_S, what="the bus to show its last values"
            )
            yield BenchTarget(live, found.nats_url, Path(found.pods_dir), _agents(found, asked.processes))
        return
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        fleet, pods_dir = Path(folder) / "fleet.toml", Path(folder) / "pods"
        fleet.write_text(load.fleet_text(asked.nodes, asked.gpus, asked.model), encoding="utf-8")
        pods_dir.mkdir()
        system = System(SystemOptions(fleet, pods_dir, processes=asked.processes, announced=False), say)
        say(f"starting {len(system.nodes)} simulated nodes with {asked.gpus} GPUs each ...")
        async with system:
            await system.ready(within_s=READY_WITHIN_S)
            if not await system.live.calm(quiet_s=CALM_S, within_s=CALM_WITHIN_S):
                say(f"after {CALM_WITHIN_S:g} s the nodes still publish: their start is measured, too")
            yield BenchTarget(system.live, system.nats_url, pods_dir, _agents(system.running(), asked.processes))


def _agents(running: RunningSystem, processes: int) -> dict[str, int]:
    groups = shared_out(running.nodes, processes)
    return {node_token(NodeName(node)): number for number, group in enumerate(groups) for node in group}


@dataclass(frozen=True, slots=True)
class _Measured:
    """The result of the system's run, and the messages for a bare broker."""

    document: BenchDocument
    ours_s: list[float]
    notes: list[ReplayMessage]
    """Empty without a comparison."""


async def _measure(
    target: BenchTarget, pods: Sequence[BenchPod], asked: BenchOptions, say: Callable[[str], None]
) -> _Measured:
    files = load.files_of(pods)
    served = _Served({pod.name: pod for pod in pods})
    began_s = time.time()
    try:
        async with asyncio.timeout(asked.within_s), asyncio.TaskGroup() as work:
            work.create_task(_bring(target.pods_dir, files, began_s))
            work.create_task(_all_served(target.live, served, began_s, other_pods_end=asked.running))
    except TimeoutError:
        say(f"not all pods were served within {asked.within_s:g} s")
    finally:
        if whys := [why for name, why in served.waits.items() if name not in served.bound]:
            say(f"{len(whys)} of {len(pods)} pods have no slice; the first waits: {whys[0]}")
        booked_twice = overcommitted(booking for _, booking in target.live.fleet_state.bookings())
        for file in files:
            (target.pods_dir / file.name).unlink(missing_ok=True)
    released = await _released(target.live, served.requests, asked.within_s)
    history = await _history(target.nats_url)
    found = request_times((happened for happened, _ in history), served.requests)
    bound = [way for way in found.values() if way.whole]
    seconds = max((way.stored_s for way in bound), default=began_s) - began_s
    document = BenchDocument(
        requests=len(pods),
        bound=len(bound),
        refused=len(served.refused),
        overcommitted=max(booked_twice, overcommitted_ever(happened for happened, _ in history)),
        seconds=round(seconds, 3),
        per_second=round(len(bound) / max(seconds, 1e-9), 2),
        hops=hops_of(bound),
        released=released,
        nodes=len(target.agents),
        gpus=sum(len(each.gpus) for each in target.live.fleet_state.news().values()),
        agents=len(set(target.agents.values())),
        mix="" if asked.replay is not None else asked.mix,
        rate=asked.rate,
    )
    ours_s = [way.stored_s - way.asked_s for way in bound]
    if not asked.with_ceiling or not bound:
        return _Measured(document, ours_s, [])
    last_s = max(way.stored_s for way in bound)
    coming = {request: served.pods[name].at_s for request, name in served.requests.items() if found[request].whole}
    words = [each for each in history if (time_s(each[0]) or 0.0) <= last_s]
    return _Measured(document, ours_s, replay_of(words, requests=coming, agents=target.agents, began_s=began_s))


async def _compared(measured: _Measured, asked: BenchOptions, say: Callable[[str], None]) -> Result:
    document, notes = measured.document, measured.notes
    if not notes:
        return Result(document, measured.ours_s, [])
    say(f"the same {len(notes)} messages on a bare broker ...")
    bare, bare_s = await ceiling(notes, within_s=asked.within_s)
    compared = replace(
        document,
        ceiling=bare,
        latency_ratio_p50=round(document.hops[-1].ms.p50 / max(bare.ms.p50, 1e-6), 3),
        throughput_ratio=round(document.per_second / max(bare.per_second, 1e-9), 3),
    )
    return Result(compared, measured.ours_s, bare_s)


@dataclass(slots=True)
class _Served:
    """The state of our pods, from the bus."""

    pods: dict[str, BenchPod]
    """By name."""
    requests: dict[str, str] = field(default_factory=dict)
    """Request ids, with pod names."""
    bound: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Names."""
    waits: dict[str, str] = field(default_factory=dict)
    """Why, by name."""

    def look(self, fleet_state: FleetState) -> None:
        """Update from the present values."""
        self.waits = {}
        for subject, message in fleet_state.values.items():
            if isinstance(message, AllocationRequested) and message.name in self.pods:
                self.requests[subject.rpartition(".")[2]] = message.name
            elif isinstance(message, RequestRejected) and message.name in self.pods:
                self.refused.add(message.name)
        for message in fleet_state.values.values():
            if isinstance(message, Bound) and message.request in self.requests:
                self.bound.add(self.requests[message.request])
            elif isinstance(message, Refused) and message.request in self.requests:
                self.refused.add(self.requests[message.request])
            elif isinstance(message, Pending) and message.request in self.requests:
                self.waits[self.requests[message.request]] = message.message

    def is_over(self, passed_s: float) -> bool:
        """Whether every pod was bound or refused, or left unserved; `passed_s` is the time since the start."""
        return all(
            name in self.bound
            or name in self.refused
            or (pod.until_s is not None and passed_s > pod.until_s + GONE_AFTER_S)
            for name, pod in self.pods.items()
        )


async def _all_served(live: LiveFleet, served: _Served, began_s: float, *, other_pods_end: bool) -> None:
    """Check at intervals: waking on every message would disturb the measurement. Ends once the rest does not fit."""
    stays = not other_pods_end and all(pod.until_s is None for pod in served.pods.values())
    done, since_s = -1, 0.0
    while not served.is_over(time.time() - began_s):
        await asyncio.sleep(LOOK_S)
        served.look(live.fleet_state)
        now_done = len(served.bound) + len(served.refused)
        if now_done != done or now_done + len(served.waits) < len(served.pods):
            done, since_s = now_done, time.monotonic()
        elif stays and time.monotonic() - since_s > STILL_S:
            return


async def _bring(pods_dir: Path, files: Sequence[BenchFile], began_s: float) -> None:
    """Write files when they are due, atomically, and remove those of leaving pods."""
    steps = [(file.at_s, file, True) for file in files]
    steps += [(file.until_s, file, False) for file in files if file.until_s is not None]
    for at_s, file, comes in sorted(steps, key=lambda step: (step[0], not step[2])):
        pause_s = began_s + at_s - time.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)  # until it is due
        path = pods_dir / file.name
        if comes:
            hidden = path.with_name(f".{file.name}.tmp")
            writing = asyncio.ensure_future(asyncio.to_thread(hidden.write_text, file.text, encoding="utf-8"))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait((writing,))  # a running thread would leave its file behind
                hidden.unlink(missing_ok=True)
                raise
            hidden.rename(path)
        else:
            path.unlink(missing_ok=True)


async def _released(live: LiveFleet, requests: dict[str, str], within_s: float) -> bool:
    """Whether none of our pods is booked any more, within a time. Checked at intervals, as above."""

    def is_booked() -> bool:
        words = live.fleet_state.values.values()
        return any(isinstance(each, Grant | Revoke) and each.booking.request in requests for each in words)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while is_booked():  # noqa: ASYNC110 - each word would wake it, and cost those who are measured
                await asyncio.sleep(LOOK_S)
            return True
    return False


async def _history(url: str) -> list[tuple[HistoryMessage, int]]:
    """Every message with its size in bytes, in order."""
    found: list[tuple[HistoryMessage, int]] = []
    async with open_history(url, name="console", credentials=user_of_the_bus(url)) as history:
        async for batch in history.read():
            for recorded in batch:
                if not isinstance(recorded.envelope, Undecodable):
                    headers = sum(len(key) + len(value) + 4 for key, value in recorded.headers.items())
                    size = len(encode(recorded.envelope)) + headers
                    found.append((HistoryMessage(recorded.subject, recorded.envelope, recorded.headers), size))
    return found
