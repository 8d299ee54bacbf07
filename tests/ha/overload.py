"""
Ten times as many requests as the system can serve, for a minute, straight onto the bus: what becomes of it.

First it is measured what can be sustained: so many requests at a time as there are places, each withdrawn as soon as it
is bound. Then requests come at ten times that rate, whatever is answered. In the end those that were not served are
withdrawn, and probes say how long a request waits again. Requests are written as a source writes them, guarded.
"""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import psutil
from factories.long_runs import percentile
from factories.scheduling.allocator import asked
from factories.system import violations_at
from factories.waiting import meanwhile
from factories.words import write_of
from ha.system import System
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, Stream, WriteAccepted, WriteRefused
from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AnyMessage, Bound, Pending, Released, RequestWithdrawn
from sluice.contracts.reasons import WaitReason
from sluice.runtime.bus import Bus
from sluice.runtime.nats.jetstream_bus import NatsBus

TIMES = 10
WAITING_MAX = 150
"""Requests that may wait: of the allocator, by its settings. So few that a short flood reaches it, too."""
SETTINGS = {"SLUICE_ALLOCATOR_WAITING_MAX": str(WAITING_MAX)}
FLOOD_MIN = 4
"""The least that is asked for, in times what may wait: a short flood on a slow machine has to reach the limit."""
AT_ONCE = 24
"""Requests that are under way while it is measured what can be sustained; there are places for more."""
WRITES_AT_ONCE = 64
PROBE_EVERY_S = 0.25
RECOVERED_WITHIN_S = 30.0
CALM_S = 10.0
"""Probes must be as quick as before for so long before it is said that all is as before."""
NORMAL_TIMES, NORMAL_MORE_S = 2.0, 0.25
"""As quick as before: within so many times the p99 of before, and so much more."""
MEMORY_MAX_MIB = 600.0
END_WITHIN_S = 180.0
FLOOD = SourceName("flood")


@dataclass
class Outcome:
    """What a flood came to."""

    sustained_per_s: float = 0.0
    offered: int = 0
    offered_per_s: float = 0.0
    bound: int = 0
    told_full: int = 0
    """Requests that were answered that as many wait as may."""
    before_p99_s: float = 0.0
    recovered_s: float = math.inf
    """From the last withdrawal on the bus until probes were as quick as before, and stayed so."""
    memory_mib: dict[str, float] = field(default_factory=dict)
    """The most that each process had, resident."""
    wrong: list[str] = field(default_factory=list)


class Source:
    """Publishes requests on the bus, and observes the answers."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._numbers = itertools.count(1)
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self._bound: dict[str, asyncio.Future[None]] = {}
        self._asked: dict[str, int] = {}
        """Requests that were not withdrawn yet, with the sequences of their messages."""
        self.released: set[str] = set()
        self.told_full: set[str] = set()
        self.names: list[str] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Hear answers for the time of the `with`."""
        bound = self._follow(Stream.BOOK, "sluice.binding.>")
        async with meanwhile(bound), meanwhile(self._follow(Stream.STATE, "sluice.waiting.>")):
            yield

    async def _follow(self, stream: Stream, under: str) -> None:
        async for batch in self._bus.read(stream, (under,)):
            for event in batch:
                if isinstance(event, Observed):
                    self._hear(event.entry.message)

    def _hear(self, message: AnyMessage | None) -> None:
        match message:
            case Bound(request=request):
                waits = self._bound.get(request)
                if waits is not None and not waits.done():
                    waits.set_result(None)
            case Released(request=request):
                self.released.add(request)
            case Pending(request=request, reasons=reasons) if reasons:
                if reasons[0].reason is WaitReason.QUEUE_FULL:
                    self.told_full.add(request)
            case _:
                pass

    async def ask(self) -> str:
        """One more small request. Returns its id."""
        number = next(self._numbers)
        name = f"flood-{number:06}"
        self._bound[name] = asyncio.get_running_loop().create_future()
        self.names.append(name)
        self._asked[name] = await self._say(name, replace(asked(name), source=FLOOD, namespace="flood"), 0)
        return name

    async def bound(self, name: str, within_s: float) -> None:
        """It has its slice. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            await asyncio.shield(self._bound[name])

    def is_bound(self, name: str) -> bool:
        """Whether it has, or had, its slice."""
        return self._bound[name].done()

    async def withdraw(self, name: str) -> None:
        expected = self._asked.pop(name)
        await self._say(name, RequestWithdrawn(revision=2, source=FLOOD, cause="pod gone"), expected)

    async def withdraw_all(self) -> None:
        await asyncio.gather(*(self.withdraw(name) for name in list(self._asked)))

    async def _say(self, name: str, message: AnyMessage, expected: int) -> int:
        address = subjects.request(RequestId(name))
        attempt = 0
        async with self._slots:
            while True:
                attempt += 1
                operation = f"flood-{name}-{message.revision}"
                write = write_of(address, message, expected, operation, attempt=attempt, request=name)
                answer = await self._bus.write(write, {})
                if isinstance(answer, WriteAccepted):
                    return answer.sequence
                if isinstance(answer, WriteRefused):  # an attempt without an answer may have landed (PROTOCOL W3)
                    there = await self._bus.last(write.stream, write.subject)
                    assert there is not None, f"{name}: {answer}"
                    assert there.operation == write.operation, f"{name}: {answer}, {there}"
                    return there.sequence


async def flood(system: System, seconds: float, say: Callable[[str], None]) -> Outcome:
    """Measure, flood for `seconds`, and see to the end of it."""
    outcome = Outcome()
    bus = await NatsBus.connect(system.broker.url, name="flood")
    source = Source(bus)
    try:
        async with meanwhile(_watch_memory(system, outcome)), source.listening():
            outcome.before_p99_s = percentile(await _probe_for(source, max(3.0, seconds / 10)), 99)
            outcome.sustained_per_s = await _sustained(source, max(3.0, seconds / 6))
            say(f"sustains {outcome.sustained_per_s:.0f}/s; a request takes {outcome.before_p99_s:.2f} s (p99)")
            rate_per_s = max(TIMES * outcome.sustained_per_s, FLOOD_MIN * WAITING_MAX / seconds)
            await _flood(source, rate_per_s, seconds, outcome)
            say(f"{outcome.offered} offered, {outcome.bound} bound, {len(source.told_full)} told to wait outside")
            await source.withdraw_all()
            ended = time.monotonic()  # until here more came than could be served, and be it withdrawals
            outcome.recovered_s = await _recovered_s(source, ended, outcome.before_p99_s, min(CALM_S, seconds))
            say(f"as before after {outcome.recovered_s:.1f} s")
            await _all_released(source, outcome)
    finally:
        await bus.close()
    outcome.told_full = len(source.told_full)
    outcome.wrong += await violations_at(system.broker.url, sources_killed=True)
    outcome.wrong += [f"{n} had {mib:.0f} MiB" for n, mib in outcome.memory_mib.items() if mib > MEMORY_MAX_MIB]
    if not outcome.told_full:
        outcome.wrong.append("the overload was not reported")
    return outcome


async def _sustained(source: Source, seconds: float) -> float:
    """Requests a second that are bound and withdrawn, with as many under way as have places."""
    ends = time.monotonic() + seconds
    served = 0

    async def worker() -> None:
        nonlocal served
        while time.monotonic() < ends:
            name = await source.ask()
            await source.bound(name, END_WITHIN_S)
            await source.withdraw(name)
            served += 1

    began = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return served / (time.monotonic() - began)


async def _flood(source: Source, rate_per_s: float, seconds: float, outcome: Outcome) -> None:
    began = time.monotonic()
    first = len(source.names)

    async def one() -> None:
        name = await source.ask()
        with contextlib.suppress(TimeoutError):
            await source.bound(name, began + seconds - time.monotonic())
            await source.withdraw(name)

    async with asyncio.TaskGroup() as asking:
        while (passed := time.monotonic() - began) < seconds:
            for _ in range(int(passed * rate_per_s) - outcome.offered):
                asking.create_task(one())
                outcome.offered += 1
            await asyncio.sleep(0.01)
    outcome.offered_per_s = outcome.offered / (time.monotonic() - began)
    outcome.bound = sum(source.is_bound(name) for name in source.names[first:])


async def _probe_for(source: Source, seconds: float) -> list[float]:
    ends, took_s = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        took_s.append(await _probe(source, END_WITHIN_S))
        await asyncio.sleep(PROBE_EVERY_S)
    return took_s


async def _probe(source: Source, within_s: float) -> float:
    """How long one request takes until it is bound."""
    began = time.monotonic()
    name = await source.ask()
    await source.bound(name, within_s)
    took_s = time.monotonic() - began
    await source.withdraw(name)
    return took_s


async def _recovered_s(source: Source, ended: float, before_p99_s: float, calm_s: float) -> float:
    """After how long probes were as quick as before, and stayed so for `calm_s`."""
    normal_s = NORMAL_TIMES * before_p99_s + NORMAL_MORE_S
    since = None
    while time.monotonic() - ended < RECOVERED_WITHIN_S * 2 + calm_s:
        began = time.monotonic()
        try:
            quick = await _probe(source, RECOVERED_WITHIN_S) <= normal_s
        except TimeoutError:
            quick = False
        since = (since if since is not None else began) if quick else None
        if since is not None and time.monotonic() - since > calm_s:
            return since - ended
        await asyncio.sleep(PROBE_EVERY_S)
    return math.inf


async def _all_released(source: Source, outcome: Outcome) -> None:
    """Every request that was ever bound is released, and every other one is answered by its withdrawal."""
    deadline = time.monotonic() + END_WITHIN_S
    wanted = {name for name in source.names if source.is_bound(name)}
    while lacking := wanted - source.released:
        if time.monotonic() > deadline:
            outcome.wrong.append(f"{len(lacking)} that were bound were never released, {min(lacking)} among them")
            return
        await asyncio.sleep(0.1)


async def _watch_memory(system: System, outcome: Outcome) -> None:
    while True:
        pids = {name: process.pid for name, process in system.services.items()}
        pids |= {f"broker-{at}": each.pid for at, each in enumerate(_brokers(), 1)}
        for name, pid in pids.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
                mib = sum(each.memory_info().rss for each in family) / 2**20
                outcome.memory_mib[name] = max(outcome.memory_mib.get(name, 0.0), mib)
        await asyncio.sleep(1.0)


def _brokers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "nats-server" in child.name():
                found.append(child)
    return found
