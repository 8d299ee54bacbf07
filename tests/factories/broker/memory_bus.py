"""
The bus without a server: for tests of services and for anything within one process.

It uses `StreamModel`, as the simulator does, and passes the same conformance suite as the NATS bus. It must promise
nothing beyond NATS.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from factories.broker.stream_model import PublishAccepted, PublishRefused, StoredValue, StreamMissing, StreamModel

from sluice.contracts.bus import events as ev
from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX
from sluice.contracts.bus.subjects import SubjectError, ledger_filter, parse
from sluice.contracts.ids import Incarnation, NodeName, OperationId
from sluice.contracts.messages import AnyMessage
from sluice.runtime.bus import Answer, BusError, Probe, Reading
from sluice.runtime.clock import Clock, SystemClock
from sluice.runtime.tracing.request_traces import RequestTraces

PUBLISHED = ("subject", "guard", "expected", "operation", "message", "ttl_s", "request")
BATCH_MAX = 5_000
"""Entries in one batch, as many as the NATS bus requests at once."""
POLL_S = 0.01
"""How often a reader checks for its missing stream."""


class MemoryBroker:
    """The streams that several buses share, and the listeners for changes."""

    def __init__(self, clock: Clock | None = None, *, streams: bool = True) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.values = StreamModel(self.clock.monotonic())
        if not streams:
            self.values.wipe()
        self.listeners: dict[asyncio.Event, None] = {}
        """Set at every change."""
        self.answering: dict[str, MemoryBus] = {}
        """By subject."""

    def bus(self, name: str, traces: RequestTraces | None = None) -> "MemoryBus":
        return MemoryBus(self, name=name, traces=traces)

    def wipe(self) -> None:
        """Lose everything, streams included. Readers wait until they are recreated."""
        self.values.wipe()
        self.changed()

    def lose_latest(self, stream: ev.Stream, count: int) -> int:
        """Lose the latest acknowledged writes of a stream, as a killed server may without sync."""
        taken = self.values.lose_latest(stream, count)
        self.changed()
        return taken

    def put_undecodable(self, subject: str) -> None:
        """Store bytes that are not a message of ours, unguarded."""
        self.put(subject, None, "")

    def put(self, subject: str, message: AnyMessage | None, operation: str = "test-1") -> None:
        """Store a message, unguarded."""
        asked = {"guard": None, "expected": 0, "operation": OperationId(operation), "now": self.clock.monotonic()}
        self.values.publish(subject=subject, message=message, **asked)  # type: ignore[arg-type]
        self.changed()

    def last(self, subject: str) -> AnyMessage | None:
        """The last message of a subject."""
        entry = self.values.last(subject, self.clock.monotonic())
        return entry.message if entry is not None else None

    def changed(self) -> None:
        for listener in self.listeners:
            listener.set()


class MemoryBus:
    """
    A `sluice.runtime.bus.Bus` over a MemoryBroker, with switches for faults.

    `lose_answers`: so many next writes land and report unknown. `lose_writes`: so many do not land and report unknown.
    `connected`: while False nothing gets through. `denied`: writes to these subjects raise BusError.
    `frozen`: the process answers no probe.
    """

    def __init__(self, broker: MemoryBroker, *, name: str = "memory", traces: RequestTraces | None = None) -> None:
        self.name = name
        self.lose_answers = 0
        self.lose_writes = 0
        self.frozen = False
        self.denied: frozenset[str] = frozenset()
        self._connected = True
        self._broker = broker
        self._traces = traces
        self._restarts: dict[ev.Stream, int] = dict.fromkeys(ev.Stream, 0)
        self._waiting: dict[asyncio.Event, float] = {}
        """Since when readers wait for something to read."""

    @property
    def connected(self) -> bool:
        return self._connected

    @connected.setter
    def connected(self, connected: bool) -> None:
        if connected and not self._connected:
            for stream in self._restarts:
                self._restarts[stream] += 1  # only a new reading shows what was missed meanwhile
        self._connected = connected
        self._broker.changed()

    async def write(self, write: ev.Write, headers: dict[str, str]) -> Answer:
        """Publish once, guarded. Raises BusError for a denied subject."""
        await asyncio.sleep(0)
        if write.subject in self.denied:
            raise BusError(f"{self.name} may not write {write.subject}")
        if not self._connected:
            await asyncio.sleep(POLL_S)
            return ev.WriteUnknown(write.operation)
        if self.lose_writes > 0:
            self.lose_writes -= 1
            return ev.WriteUnknown(write.operation)
        said = {name: getattr(write, name) for name in PUBLISHED}
        outcome = self._broker.values.publish(**said, now=self._broker.clock.monotonic(), headers=headers)
        self._broker.changed()
        if self.lose_answers > 0:
            self.lose_answers -= 1
            return ev.WriteUnknown(write.operation)
        match outcome:
            case PublishAccepted():
                return ev.WriteAccepted(write.operation, outcome.sequence)
            case PublishRefused():
                return ev.WriteRefused(write.operation, outcome.last)
            case StreamMissing():
                await asyncio.sleep(POLL_S)
                return ev.WriteUnknown(write.operation)

    async def read(self, stream: ev.Stream, filters: tuple[str, ...] = ()) -> AsyncGenerator[list[Reading]]:
        """All last values under `filters`, then the live tail; restarted after a wipe or a lost connection."""
        while True:
            async with aclosing(self._reading(stream, filters, None)) as reading:
                async for batch in reading:
                    yield batch

    async def read_ledger(self, node: NodeName) -> AsyncGenerator[list[Reading]]:
        """A node's ledger; waits while the durable of its agent does not exist."""
        while True:
            async with aclosing(self._reading(ev.Stream.BOOK, (ledger_filter(node),), node)) as reading:
                async for batch in reading:
                    yield batch

    def read_again(self, stream: ev.Stream) -> None:
        self._restarts[stream] += 1
        self._broker.changed()

    async def last(self, stream: ev.Stream, subject: str) -> ev.Entry | None:
        """The last value of one subject. Raises TimeoutError without a connection or a stream."""
        await asyncio.sleep(0)
        self._need(stream)
        return self._broker.values.last(subject, self._broker.clock.monotonic())

    async def incarnation(self, stream: ev.Stream) -> Incarnation:
        """The incarnation of the data. Raises TimeoutError when there is no such stream."""
        await asyncio.sleep(0)
        self._need(stream)
        incarnation = self._broker.values.incarnation(stream)
        assert incarnation is not None
        return incarnation

    async def ensure_streams(self, *, history_bytes: int = HISTORY_BYTES_MAX) -> None:
        """Create missing streams. Nothing is on a disk."""
        del history_bytes
        self._broker.values.ensure(self._broker.clock.monotonic())
        self._broker.changed()

    async def bound_agents(self) -> None:
        """Agents here are ours."""

    async def ensure_agent(self, node: NodeName) -> None:
        """Create the durable of a node's agent. Raises TimeoutError when there is no stream for it."""
        self._need(ev.Stream.BOOK)
        self._broker.values.ensure_agent(node)
        self._broker.changed()

    @asynccontextmanager
    async def answering(self, subject: str) -> AsyncGenerator[None]:
        self._broker.answering[subject] = self
        try:
            yield
        finally:
            del self._broker.answering[subject]

    async def probe(self, subject: str, within_s: float) -> Probe:
        await asyncio.sleep(0)
        if not self._connected:
            return Probe.UNKNOWN
        other = self._broker.answering.get(subject)
        if other is None or not other.connected:
            return Probe.ABSENT
        if other.frozen:
            await self._broker.clock.sleep(within_s)
            return Probe.SILENT
        return Probe.ANSWERED

    @property
    def unread_s(self) -> float:
        """For how long a stream to be read here has been unreadable; 0 while readings go on."""
        now = self._broker.clock.monotonic()
        return max((now - since for since in self._waiting.values()), default=0.0)

    async def close(self) -> None:
        self._connected = False

    def _up(self) -> bool:  # a call, which type checkers do not take for the same each time
        return self._connected

    def _need(self, stream: ev.Stream) -> None:
        if not self._connected or not self._broker.values.has(stream):
            raise TimeoutError(f"no answer about {stream}")

    async def _reading(
        self, stream: ev.Stream, filters: tuple[str, ...], agent: NodeName | None
    ) -> AsyncGenerator[list[Reading]]:
        values = self._broker.values
        news = asyncio.Event()
        self._broker.listeners[news] = None
        try:
            if agent is not None and not (self._up() and values.has_agent(agent)):
                yield [ev.ReadingStarted(stream, Incarnation(""))]
            while not (self._up() and values.has(stream) and (agent is None or values.has_agent(agent))):
                self._waiting.setdefault(news, self._broker.clock.monotonic())
                news.clear()
                await news.wait()
            self._waiting.pop(news, None)
            restarts = self._restarts[stream]
            incarnation = values.incarnation(stream)
            assert incarnation is not None
            yield [ev.ReadingStarted(stream, incarnation)]
            cursor = values.cursor(stream, filters)
            caught_up = False
            while not cursor.lost and restarts == self._restarts[stream]:
                if agent is not None and not values.has_agent(agent):
                    return
                news.clear()
                up = self._up()
                found = cursor.read(self._broker.clock.monotonic(), BATCH_MAX) if up else []
                batch: list[Reading] = [self._observed(stream, value) for value in found if _is_ours(value)]
                if up and not caught_up and len(found) < BATCH_MAX:
                    caught_up = True
                    batch.append(ev.ReadingCaughtUp(stream))
                if batch:
                    yield batch
                else:
                    await news.wait()
        finally:
            self._waiting.pop(news, None)
            self._broker.listeners.pop(news, None)

    def _observed(self, stream: ev.Stream, value: StoredValue) -> ev.Observed:
        if self._traces is not None:
            entry = value.entry
            self._traces.arrived(entry.subject, entry.sequence, value.request, value.headers)
        return ev.Observed(stream, value.entry)


def _is_ours(value: StoredValue) -> bool:
    try:
        parse(value.entry.subject)
    except SubjectError:
        return False
    return True
