"""Buses under test behind one interface, `Rig`, with short functions to write and read."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from factories.broker.memory_bus import MemoryBroker
from factories.broker.nats_server import Broker
from factories.waiting import WITHIN_S, meanwhile, until
from factories.words import write_of

from sluice.contracts.bus import events as ev
from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import AnyMessage, Closed, NodeRemoved, Released, SliceGone, WaitOver
from sluice.contracts.outbox import Outbox, OutboxReport, Settled
from sluice.runtime.bus import Answer, Bus, Reading
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.tracing.request_traces import RequestTraces

NODE = NodeName("gpu-1.example")
OTHER_NODE = NodeName("gpu-2.example")


class Rig(Protocol):
    """A broker to be tested, whatever it is made of."""

    async def bus(self, name: str = "allocator", traces: RequestTraces | None = None) -> Bus: ...

    async def put_undecodable(self, subject: str) -> None:
        """Store bytes that are no message of ours."""

    async def wipe(self) -> None: ...


class MemoryRig:
    """The memory bus."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    async def bus(self, name: str = "allocator", traces: RequestTraces | None = None) -> Bus:
        return self.broker.bus(name, traces)

    async def put_undecodable(self, subject: str) -> None:
        self.broker.put_undecodable(subject)

    async def wipe(self) -> None:
        self.broker.wipe()


class NatsRig:
    """Real servers."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        """Connections are closed with `stack`."""
        self.broker = broker
        self._stack = stack

    async def bus(
        self, name: str = "allocator", traces: RequestTraces | None = None, refresh_s: float = 300.0
    ) -> NatsBus:
        bus = await NatsBus.connect(self.broker.url, name=name, traces=traces, refresh_s=refresh_s)
        self._stack.push_async_callback(bus.close)
        return bus

    async def put_undecodable(self, subject: str) -> None:
        async with raw(self.broker.url) as connection:

            async def stored() -> bool:
                return "seq" in json.loads((await connection.request(subject, b"\xff not ours")).data)

            await until(stored, yet=(TimeoutError,))

    async def wipe(self) -> None:
        """As when the disk of every server is lost."""
        for server in self.broker.servers:
            await server.kill()
            server.wipe()
        for server in self.broker.servers:
            await server.start()
        await self.broker.ready()


class SharedClusterRig(NatsRig):
    """Three servers that many tests use one after another; electing leaders again takes seconds."""

    async def wipe(self) -> None:
        async with raw(self.broker.url) as connection:
            for stream in ev.Stream:
                await connection.ask(f"STREAM.DELETE.{stream}")


async def shown(rig: Rig, view: "View", *sequences: int) -> None:
    """Wait until a first reading has ended and shown these sequences; of three servers one may be a moment late."""
    if isinstance(rig, SharedClusterRig):
        await view.until(lambda view: view.caught_up >= 1 and view.has(sequences))
        return
    await view.until(lambda view: view.caught_up == 1)
    assert view.has(sequences), view.observed


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Connection]:
    """A connection without the bus around it."""
    connection = await Connection.open(url, name="raw")
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def broker_and_bus(folder: Path) -> AsyncIterator[tuple[Broker, NatsBus]]:
    """A broker with its data below `folder`, and a bus whose streams are declared."""
    async with Broker(folder / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="test")
        try:
            await bus.ensure_streams()
            yield broker, bus
        finally:
            await bus.close()


async def ensured(bus: Bus) -> None:
    """Declare the streams, as soon as the servers can."""

    async def done() -> bool:
        await bus.ensure_streams()
        return True

    await until(done, "the streams are declared", yet=(TimeoutError,))


async def agent_ensured(bus: Bus) -> None:
    """Make the durable of the agent of NODE, as soon as the servers can."""

    async def done() -> bool:
        await bus.ensure_agent(NODE)
        return True

    await until(done, "the durable is made", yet=(TimeoutError,))


# -- messages --------------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)


def word(address: Address, text: str = "x") -> AnyMessage:
    """A valid message for an address, with a text of the test's; its type does not matter to a bus."""
    match address.kind, address.key:
        case "ledger", (node, allocation):
            about = {"allocation": AllocationId(allocation), "request": RequestId("r")}
            return Closed(revision=1, node=NodeName(node), cause=text, **about)
        case "slice", (_, allocation):
            return SliceGone(allocation=AllocationId(allocation), request=RequestId("r"), revision=1, cause=text)
        case "binding", (request,):
            return Released(request=RequestId(request), cause=text)
        case "node", (node,):
            return NodeRemoved(node=NodeName(node), cause=text)
        case _:
            return WaitOver(request=RequestId(text))  # set aside wherever it does not belong


def place(allocation: str, node: NodeName = NODE) -> Address:
    return subjects.ledger(node, AllocationId(allocation))


def order(address: Address, expected: int, message: AnyMessage | None = None, **more: Any) -> ev.Write:
    """A first attempt to write, by default some message; `more` are fields of the write."""
    operation = more.pop("operation", "") or f"test-{next(_numbers)}"
    return write_of(address, message if message is not None else word(address), expected, operation, **more)


async def settled(bus: Bus, write: ev.Write, within_s: float = 20.0) -> Answer:
    """Write, again and again with the same guard while there is no answer, as the outbox does."""
    async with asyncio.timeout(within_s):
        while True:
            answer = await bus.write(write, {})
            if not isinstance(answer, ev.WriteUnknown):
                return answer


async def say(bus: Bus, address: Address, expected: int, message: AnyMessage | None = None, **more: Any) -> int:
    """Write and return the sequence; the write must be accepted. One without an answer may have been (PROTOCOL W3)."""
    write = order(address, expected, message, **more)
    answer = await settled(bus, write)
    if isinstance(answer, ev.WriteRefused):
        there = await bus.last(write.stream, write.subject)
        assert there.operation == write.operation, answer
        return there.sequence
    assert isinstance(answer, ev.WriteAccepted), answer
    return answer.sequence


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class View:
    """What one reader knows: last values as of the last complete reading, and how it came to know them."""

    starts: list[ev.ReadingStarted] = field(default_factory=list)
    caught_up: int = 0
    known: dict[str, ev.Entry] = field(default_factory=dict)
    observed: list[ev.Entry] = field(default_factory=list)
    """Of the current reading, in order."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, batch: list[Reading]) -> None:
        for event in batch:
            match event:
                case ev.ReadingStarted():
                    self.starts.append(event)
                    self.observed = []
                case ev.Observed(entry=entry):
                    self.observed.append(entry)
                    self.known[entry.subject] = entry
                case ev.ReadingCaughtUp():
                    self.caught_up += 1
                    self.known = {entry.subject: entry for entry in self.observed}
        self.news.set()

    def has(self, sequences: Sequence[int]) -> bool:
        return set(sequences) <= {entry.sequence for entry in self.known.values()}

    async def until(self, there: Callable[["View"], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not there(self):
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watching(batches: AsyncIterator[list[Reading]]) -> AsyncIterator[View]:
    """Read in the background into the view that is yielded. Raises what the reader raised."""
    view = View()
    reading: Any = batches

    async def read() -> None:
        async with aclosing(reading):
            async for batch in reading:
                view.take(batch)

    async with meanwhile(read()):
        yield view


# -- an outbox at work ------------------------------------------------------------------------------------------------


class LosingAnswers:
    """A bus whose next `lose` writes, and each `every`-th, land, or are refused, without an answer."""

    def __init__(self, bus: Bus, lose: int = 0, *, every: int = 0) -> None:
        self._bus, self._every, self._writes = bus, every, 0
        self.lose = lose

    async def write(self, write: ev.Write, headers: dict[str, str]) -> Answer:
        answer = await self._bus.write(write, headers)
        self._writes += 1
        if self.lose > 0 or (self._every and self._writes % self._every == 0):
            self.lose -= 1
            return ev.WriteUnknown(write.operation)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class Clerk:
    """A core that only follows its outbox, and remembers its reports."""

    def __init__(self, run: str, kinds: frozenset[str], *, reading: Literal["stream", "last"] = "stream") -> None:
        self.reads_single_values = reading == "last"
        self.outbox = Outbox(RunId(run), kinds, reading=reading)
        self.reports: list[OutboxReport] = []
        self.has_read = False

    def handle(self, event: ev.CoreEvent, now: float) -> list[ev.BusInstruction]:
        self.has_read = self.has_read or isinstance(event, ev.ReadingCaughtUp)
        if isinstance(event, ev.Ticked):
            self.outbox.tick(now)
        else:
            self.reports += self.outbox.handle(event, now)
        return self.outbox.drain()

    @property
    def settled(self) -> dict[OperationId, bool]:
        """Which commits ended, and whether they landed."""
        return {report.operation: report.landed for report in self.reports if isinstance(report, Settled)}


@asynccontextmanager
async def at_work(clerk: Clerk, bus: Any, stream: ev.Stream) -> AsyncIterator[CoreRunner[ev.CoreEvent]]:
    """Run a clerk over a bus, as a service runs its core. Who offers its runner a tick has it look at once."""
    readings = () if clerk.reads_single_values else ((stream, ()),)
    runner = CoreRunner[ev.CoreEvent](
        name="clerk", core=clerk, bus=bus, clock=SystemClock(), traces=RequestTraces(), readings=readings, tick_s=0.05
    )
    async with meanwhile(runner.run()):
        yield runner
