"""A scripted core and a scripted bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from sluice.contracts.bus.events import Entry, Stream, Write, WriteAccepted
from sluice.runtime.bus import Answer, Reading
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.tracing.request_traces import RequestTraces


@dataclass
class _Script:
    """A core: keeps all its events, and returns what `rules` gives for each."""

    rules: Callable[[object], list[object]] = lambda _event: []
    heard: list[object] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def handle(self, event: object, now: float) -> list[object]:
        self.heard.append(event)
        self.news.set()
        return self.rules(event)

    async def hears(self, wanted: Callable[[object], bool], count: int = 1) -> None:
        async with asyncio.timeout(5):
            while sum(map(wanted, self.heard)) < count:
                self.news.clear()
                await self.news.wait()


@dataclass
class _FakeBus:
    """A bus whose readers yield what is put into `batches`, and whose writes are all accepted."""

    batches: asyncio.Queue[list[Reading]] = field(default_factory=asyncio.Queue)
    written: list[tuple[Write, dict[str, str]]] = field(default_factory=list)
    read_anew: list[Stream] = field(default_factory=list)
    closed_readers: list[object] = field(default_factory=list)
    values: dict[str, Entry] = field(default_factory=dict)
    silent_reads: int = 0
    asked: int = 0
    hold_writes: asyncio.Event | None = None
    failure: Exception | None = None

    async def write(self, write: Write, headers: dict[str, str]) -> Answer:
        self.written.append((write, headers))
        if self.failure is not None:
            raise self.failure
        if self.hold_writes is not None:
            await self.hold_writes.wait()
        return WriteAccepted(write.operation, write.expected + 1)

    async def read(self, stream: Stream, filters: tuple[str, ...] = ()) -> AsyncIterator[list[Reading]]:
        try:
            while True:
                self.asked += 1
                yield await self.batches.get()
        finally:
            self.closed_readers.append((stream, filters))

    def read_again(self, stream: Stream) -> None:
        self.read_anew.append(stream)

    async def last(self, stream: Stream, subject: str) -> Entry | None:
        if self.silent_reads:
            self.silent_reads -= 1
            raise TimeoutError
        return self.values.get(subject)


class _HastyClock(SystemClock):
    """The system's clock, but waiting takes a hundredth of its time."""

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s / 100)


@pytest.fixture
def bus() -> _FakeBus:
    return _FakeBus()


@pytest.fixture
def core() -> _Script:
    return _Script()


@pytest.fixture
def runner_of(core, bus):
    """A runner of `core` on `bus`, in which time passes quickly."""

    def made(**options) -> CoreRunner:
        given = {"clock": _HastyClock(), "traces": RequestTraces(), "readings": [(Stream.BOOK, ())]} | options
        return CoreRunner(name="test", core=core, bus=bus, **given)

    return made


@pytest.fixture
def running(runner_of):
    """An async context in which a runner of `core` on `bus` runs."""

    @asynccontextmanager
    async def run(**options) -> AsyncIterator[CoreRunner]:
        runner = runner_of(**{"tick_s": 3600.0} | options)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    return run


@pytest.fixture
def run_until_failure(runner_of):
    """Run a runner of `core` on `bus` that is offered one event, until it fails."""

    async def run(event: object, **options) -> None:
        runner = runner_of(**options)
        await runner.offer(event)
        async with asyncio.timeout(5):
            await runner.run()

    return run
