"""
Drives a core: feeds it what is read, answered and due, and carries out what it instructs.

One task owns the core, so cores need no locks. Nothing here decides, retries a write or looks inside a message. An
exception anywhere ends the runner (and with it the service, whose supervisor starts it anew): a core that has missed
the answer to one of its instructions must not go on.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from sluice.contracts.exchange import LastRead, ReadAgain, ReadingCaughtUp, ReadLast, Stream, Ticked, Write
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice.runtime.bus import Bus, Reading
from sluice.runtime.clock import Clock
from sluice.runtime.inbox import EVENTS_MAX, Inbox
from sluice.runtime.retry import Backoff
from sluice.runtime.telemetry import TraceBook

SLICE_S = 0.02
"""How long the core may work before the event loop gets its turn: connections must answer pings meanwhile."""
DRAIN_S = 2.0
"""How long what is under way may take to end when the runner is cancelled."""
READ_LAST_MAX = 32
"""Single reads without an answer at any moment."""

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
I_co = TypeVar("I_co", covariant=True)


class Core(Protocol[E_contra, I_co]):
    """A pure core: the one thing in a service that decides."""

    def handle(self, event: E_contra, now: float) -> Sequence[I_co]:
        """Take in one event at `now` (monotonic, s) and say what to do."""


@dataclass(frozen=True, slots=True)
class Executor(Generic[E]):
    """
    How one type of instruction is carried out.

    `run` does it and returns the event that tells the core how it went (None when there is nothing to tell).
    Instructions with equal `key` are carried out one after another, in order, across all types; without a key all at
    once, up to `limit`. `request` names the request an instruction belongs to, for its trace. What is `quiet` is
    logged at debug: steps rather than decisions.
    """

    run: Callable[[Any], Awaitable[E | None]]
    key: Callable[[Any], Hashable] | None = None
    request: Callable[[Any], str] | None = None
    limit: int = 64
    quiet: bool = False
    slots: asyncio.Semaphore = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the slots that `limit` speaks of."""
        object.__setattr__(self, "slots", asyncio.Semaphore(self.limit))


class CoreRunner(Generic[E]):
    """
    Runs one core until cancelled.

    Reads the streams in `readings` (each with its filters; none means all of the stream) or the `ledger` of a node.
    `execute` says how the core's own instructions are carried out: an `Executor`, or just its function.
    """

    def __init__(
        self,
        *,
        name: str,
        core: Core[Any, object],
        bus: Bus,
        clock: Clock,
        traces: TraceBook,
        readings: Sequence[tuple[Stream, tuple[str, ...]]] = (),
        ledger: NodeName | None = None,
        execute: Mapping[type, Executor[E] | Callable[[Any], Awaitable[E | None]]] | None = None,
        tick_s: float = 0.5,
        events_max: int = EVENTS_MAX,
        drain_s: float = DRAIN_S,
    ) -> None:
        """Nothing happens before `run`."""
        self._name = name
        self._core = core
        self._bus = bus
        self._clock = clock
        self._traces = traces
        self._readings = tuple(readings)
        self._ledger = ledger
        self._tick_s = tick_s
        self._drain_s = drain_s
        self._execute: dict[type, Executor[E]] = {
            kind: how if isinstance(how, Executor) else Executor(how) for kind, how in (execute or {}).items()
        }
        self._inbox: Inbox[Any] = Inbox(Ticked(), events_max=events_max)
        self._read_slots = asyncio.Semaphore(READ_LAST_MAX)
        self._lanes: dict[Hashable, deque[tuple[Executor[E], object]]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._work: asyncio.TaskGroup | None = None
        self._log = logs.get("core", core=name)
        self._unread = len(self._readings) + (ledger is not None)
        """Readings that have not caught up for the first time."""
        self.turned_at = clock.monotonic()
        """When the core last had its turn: at least every `tick_s`, unless something is very wrong."""

    async def run(self) -> None:
        """
        Run until cancelled. Raises what an executor, the bus or the core raised (in an ExceptionGroup).

        Cancelled, it stops reading and deciding at once and gives writes and executors that are under way `drain_s`.
        """
        async with asyncio.TaskGroup() as work:
            self._work = work
            try:
                async with asyncio.TaskGroup() as feed:
                    for stream, filters in self._readings:
                        feed.create_task(self._read(self._bus.read(stream, filters)))
                    if self._ledger is not None:
                        feed.create_task(self._read(self._bus.read_ledger(self._ledger)))
                    feed.create_task(self._keep_time())
                    feed.create_task(self._decide())
            except asyncio.CancelledError:
                if self._under_way:
                    await asyncio.wait(self._under_way, timeout=self._drain_s)
                raise

    @property
    def caught_up(self) -> bool:
        """Whether everything that is read was read to its end once."""
        return not self._unread

    async def offer(self, event: E) -> None:
        """Give the core an event from another task of the shell; waits while the inbox is full."""
        await self._inbox.offer((event,))

    # -- feeding --------------------------------------------------------------------------------------------------

    async def _read(self, batches: AsyncIterator[list[Reading]]) -> None:
        """
        Pass on what is read.

        A batch is in the inbox before the next one is asked for: so `ReadingStarted` stands in front of every answer
        that comes after the server was asked for that reading.
        """
        caught_up = False
        try:
            async for batch in batches:
                await self._inbox.offer(batch)
                if not caught_up and any(isinstance(event, ReadingCaughtUp) for event in batch):
                    caught_up = True
                    self._unread -= 1
                    if not self._unread:
                        self._log.info("ready", pid=os.getpid())
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()
        raise RuntimeError(f"a reader of {self._name} has ended")

    async def _keep_time(self) -> None:
        while True:
            await self._clock.sleep(self._tick_s)
            self._inbox.tick()

    async def _decide(self) -> None:
        while True:
            await self._inbox.filled()
            began = now = self._clock.monotonic()
            while now - began < SLICE_S and (event := self._inbox.take()) is not None:
                for instruction in self._core.handle(event, now):
                    self._dispatch(instruction)
                now = self._clock.monotonic()
            self.turned_at = now
            await self._inbox.let_in()

    # -- carrying out ---------------------------------------------------------------------------------------------

    def _dispatch(self, instruction: object) -> None:
        match instruction:
            case Write():
                self._start(self._write(instruction))
            case ReadAgain():
                self._log.debug("reads again", stream=instruction.stream)
                self._bus.read_again(instruction.stream)
            case ReadLast():
                self._start(self._read_last(instruction), drain=False)
            case _:
                self._dispatch_own(instruction)

    def _dispatch_own(self, instruction: object) -> None:
        how = self._execute.get(type(instruction))
        if how is None:
            raise LookupError(f"{self._name} has no executor for {type(instruction).__name__}")
        (self._log.debug if how.quiet else self._log.info)(type(instruction).__name__, instruction=instruction)
        if how.key is None:
            self._start(self._carry_out(how, instruction))
            return
        key = how.key(instruction)
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque([(how, instruction)])
            self._start(self._carry_out_lane(key))
        else:
            lane.append((how, instruction))

    def _start(self, coroutine: Coroutine[Any, Any, None], *, drain: bool = True) -> None:
        assert self._work is not None, "run() makes the group"
        task = self._work.create_task(coroutine)
        if drain:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _write(self, write: Write) -> None:
        word = type(write.message).__name__
        self._log.debug("writes", word=word, subject=write.subject, operation=write.operation, attempt=write.attempt)
        with self._traces.span(f"publish {word}", write.request, kind="producer", subject=write.subject):
            answer = await self._bus.write(write, self._traces.headers(write.request))
        self._log.debug("wrote", subject=write.subject, answer=answer)
        self._inbox.add((answer,))

    async def _read_last(self, wanted: ReadLast) -> None:
        backoff = Backoff()
        async with self._read_slots:
            while True:
                try:
                    entry = await self._bus.last(wanted.stream, wanted.subject)
                except TimeoutError:  # the broker is away; the core cannot write there before it knows
                    self._log.debug("no answer to a read", subject=wanted.subject)
                    await self._clock.sleep(backoff.next_s())
                else:
                    self._inbox.add((LastRead(wanted.subject, entry),))
                    return

    async def _carry_out(self, how: Executor[E], instruction: object) -> None:
        request = how.request(instruction) if how.request is not None else ""
        async with how.slots:
            with self._traces.span(type(instruction).__name__, request):
                event = await how.run(instruction)
        if event is not None:
            self._inbox.add((cast("Any", event),))

    async def _carry_out_lane(self, key: Hashable) -> None:
        lane = self._lanes[key]
        while lane:
            how, instruction = lane.popleft()
            await self._carry_out(how, instruction)
        del self._lanes[key]
