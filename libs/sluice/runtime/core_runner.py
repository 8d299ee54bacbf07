"""Runs a core: feeds it observations, results and ticks, and carries out its instructions.

One task owns the core. An exception anywhere ends the runner and with it the service: a core that has missed the result
of one of its instructions cannot continue."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sluice.contracts.bus import events
from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice.runtime.bus import Bus, Reading
from sluice.runtime.clock import Clock
from sluice.runtime.inbox import EVENTS_MAX, Inbox
from sluice.runtime.prefetch import PredictRead, Prefetch
from sluice.runtime.prometheus import metrics, runtime_metrics
from sluice.runtime.prometheus.metrics import Collector, Sample
from sluice.runtime.retry import Backoff
from sluice.runtime.tracing import request_traces
from sluice.runtime.tracing.core_spans import CoreSpans, SpanPhase
from sluice.runtime.tracing.request_traces import NO_ATTRIBUTES, RequestTraces, current
from sluice.runtime.tracing.span_attributes import of_instruction

SLICE_S = 0.02
"""How long the core may work before the event loop gets its turn: connections must answer pings meanwhile."""
DRAIN_S = 2.0
"""How long running instructions may take to end when the runner is cancelled."""
READ_LAST_MAX = 32
_ANSWERS = {events.WriteAccepted: "accepted", events.WriteRefused: "refused", events.WriteUnknown: "unknown"}

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
I_co = TypeVar("I_co", covariant=True)


class Core(Protocol[E_contra, I_co]):
    """A pure core: the one part of a service that decides."""

    def handle(self, event: E_contra, now: float) -> Sequence[I_co]:
        """Take in one event at `now` (monotonic, s) and return instructions."""


@dataclass(frozen=True, slots=True)
class Executor(Generic[E]):
    """How one type of instruction is carried out.

    `run` returns the event with the result, or None. Instructions with equal `key` run one after another, across all
    types; without a key at once, up to `limit`. `request` is for its trace. `quiet` ones are logged at debug."""

    run: Callable[[Any], Awaitable[E | None]]
    key: Callable[[Any], Hashable] | None = None
    request: Callable[[Any], str] | None = None
    within: Callable[[Any], str] | None = None
    """For instructions without a request: the `traceparent` of their cause; empty for none."""
    at_once: Callable[[Any], Callable[[], E | None] | None] | None = None
    """Carries it out without a task, so that its result is there at once; None where `run` has to. Not with a key."""
    limit: int = 64
    quiet: bool = False
    slots: asyncio.Semaphore = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", asyncio.Semaphore(self.limit))


@dataclass(slots=True)  # not frozen: creation would take three times as long, for every answer
class _Doing(Generic[E]):
    how: Executor[E]
    instruction: object
    request: str
    cause: str


@dataclass(slots=True)
class _Answer:
    """The result of an instruction, and the span in which it was carried out."""

    event: object
    cause: str


class CoreRunner(Generic[E]):
    """Runs one core until cancelled.

    Reads the streams in `readings` (each with its filters; none means all of the stream) or the `ledger` of a node.
    `execute` carries out the core's own instructions: an `Executor`, or just its function. `shows` exports the core's
    state as metrics. `phases` name its phases in traces. `begins` is awaited when a reading begins, before anything
    else of it is passed on; it must bound itself. `predict_read` guesses the core's next single reads from its events.
    While the core `is_calm`, it ticks every `calm_tick_s` where that is longer than `tick_s`. `go_on` returns an event
    that continues unfinished work, or None; asked when no other event waits."""

    def __init__(
        self,
        *,
        name: str,
        core: Core[Any, object],
        bus: Bus,
        clock: Clock,
        traces: RequestTraces,
        readings: Sequence[tuple[events.Stream, tuple[str, ...]]] = (),
        ledger: NodeName | None = None,
        execute: Mapping[type, Executor[E] | Callable[[Any], Awaitable[E | None]]] | None = None,
        tick_s: float = 0.5,
        events_max: int = EVENTS_MAX,
        drain_s: float = DRAIN_S,
        shows: Collector = tuple,
        phases: Sequence[SpanPhase] = (),
        begins: Callable[[events.ReadingStarted], Awaitable[None]] | None = None,
        predict_read: PredictRead | None = None,
        is_calm: Callable[[], bool] = lambda: False,
        calm_tick_s: float = 0.0,
        go_on: Callable[[], E | None] = lambda: None,
    ) -> None:
        self._name = name
        self._kind = name.partition(" ")[0]
        """The label in metrics: names as such would be as many as nodes."""
        self._core = core
        self._bus = bus
        self._clock = clock
        self._traces = traces
        self._spans = CoreSpans(traces, phases)
        self._readings = tuple(readings)
        self._ledger = ledger
        self._tick_s, self._calm_tick_s = tick_s, max(tick_s, calm_tick_s)
        self._drain_s = drain_s
        self._shows = shows
        self._begins = begins
        self._execute: dict[type, Executor[E]] = {
            kind: how if isinstance(how, Executor) else Executor(how) for kind, how in (execute or {}).items()
        }
        self._inbox: Inbox[Any] = Inbox(events.Ticked(), events_max=events_max)
        self._prefetch = Prefetch(bus, predict_read)
        self._is_calm = is_calm
        self._go_on = go_on
        self._stirred = asyncio.Event()
        """The core has had an event other than a tick."""
        self._read_slots = asyncio.Semaphore(READ_LAST_MAX)
        self._lanes: dict[Hashable, deque[_Doing[E]]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._work: asyncio.TaskGroup | None = None
        self._log = logs.get("core", core=name).bind()  # bound once; binding per line is slow
        self._unread = len(self._readings) + (ledger is not None)
        """Readings that have not caught up for the first time."""
        self.turn = asyncio.Lock()
        """Held while the core handles events, and by who reads its state for longer than a turn of the event loop."""
        self.turned_at = clock.monotonic()
        """When the core last ran: at least every `tick_s`, or `calm_tick_s` while it is calm, unless it hangs."""

    async def run(self) -> None:
        """Run until cancelled; then running writes have `drain_s`. Raises what executors, bus or core raised."""
        with metrics.collecting_from(self._now), metrics.collecting_from(self._shows):
            try:
                await self._run()
            finally:
                self._prefetch.forget()

    def _now(self) -> tuple[Sample, ...]:
        return (
            Sample(runtime_metrics.INBOX, len(self._inbox), (self._kind,)),
            Sample(runtime_metrics.CONNECTED, self._bus.connected, (self._kind,)),
            Sample(runtime_metrics.CAUGHT_UP, self.caught_up, (self._kind,)),
        )

    async def _run(self) -> None:
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
        return not self._unread

    async def offer(self, event: E) -> None:
        """Give the core an event from another task of the shell; waits while the inbox is full."""
        await self._inbox.offer((event,))

    async def _read(self, batches: AsyncIterator[list[Reading]]) -> None:
        """Pass on what is read, each batch before the next is asked for: `ReadingStarted` precedes answers."""
        caught_up = False
        try:
            async for batch in batches:
                if isinstance(batch[0], events.ReadingStarted):  # which comes alone
                    metrics.count(runtime_metrics.READINGS, batch[0].stream)
                self._prefetch.hear(batch)
                await self._inbox.offer(batch)
                if self._begins is not None and isinstance(batch[0], events.ReadingStarted):
                    await self._begins(batch[0])
                if not caught_up and any(isinstance(event, events.ReadingCaughtUp) for event in batch):
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
            if self._is_calm():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._calm_tick_s):
                        while self._is_calm():
                            self._stirred.clear()
                            await self._stirred.wait()
            else:
                await self._clock.sleep(self._tick_s)
            self._inbox.tick()

    async def _decide(self) -> None:
        while True:
            await self._inbox.filled()
            async with self.turn:
                self._handle_events()
            if not self._inbox and (more := self._go_on()) is not None:
                self._inbox.add((more,))
            await self._inbox.admit_waiting()

    def _handle_events(self) -> None:
        began = now = self._clock.monotonic()
        while now - began < SLICE_S and (event := self._inbox.take()) is not None:
            cause = ""
            if isinstance(event, _Answer):
                answer: _Answer = event
                event, cause = answer.event, answer.cause
            instructions = self._core.handle(event, now)
            if not isinstance(event, events.Ticked):
                self._stirred.set()
            before, now = now, self._clock.monotonic()
            metrics.observe(runtime_metrics.EVENT_SECONDS, now - before, self._kind, type(event).__name__)
            if instructions or self._traces.recording:
                doing = [(instruction, self._request_of(instruction)) for instruction in instructions]
                cause = self._spans.turn(event, cause, doing, now - before)
                for instruction, request in doing:
                    metrics.count(runtime_metrics.INSTRUCTIONS, self._kind, type(instruction).__name__)
                    self._dispatch(instruction, request, cause)
                now = self._clock.monotonic()  # some may have been carried out
        self.turned_at = now

    def _request_of(self, instruction: object) -> str:
        if isinstance(instruction, events.Write):
            return instruction.request
        how = self._execute.get(type(instruction))
        return how.request(instruction) if how is not None and how.request is not None else ""

    def _dispatch(self, instruction: object, request: str, cause: str) -> None:
        match instruction:
            case events.Write():
                self._start(self._write(instruction, cause))
            case events.ReadAgain():
                self._log.debug("reads again", stream=instruction.stream)
                self._bus.read_again(instruction.stream)
            case events.ReadLast():
                self._start(self._read_last(instruction), drain=False)
            case _:
                self._dispatch_own(instruction, request, cause)

    def _dispatch_own(self, instruction: object, request: str, cause: str) -> None:
        how = self._execute.get(type(instruction))
        if how is None:
            raise LookupError(f"{self._name} has no executor for {type(instruction).__name__}")
        with request_traces.within(self._traces.at(request) or cause):
            (self._log.debug if how.quiet else self._log.info)(type(instruction).__name__, instruction=instruction)
        doing = _Doing(how, instruction, request, cause)
        if how.key is None:
            do = how.at_once(instruction) if how.at_once is not None else None
            if do is None:
                self._start(self._carry_out(doing))
            else:
                with self._span_of(doing):
                    began = self._clock.monotonic()
                    event = do()
                    inside = current()
                self._carried_out(doing, event, inside, self._clock.monotonic() - began)
            return
        key = how.key(instruction)
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque([doing])
            self._start(self._carry_out_lane(key))
        else:
            lane.append(doing)

    def _start(self, coroutine: Coroutine[Any, Any, None], *, drain: bool = True) -> None:
        assert self._work is not None, "run() makes the group"
        task = self._work.create_task(coroutine)
        if drain:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _write(self, write: events.Write, cause: str) -> None:
        word = type(write.message).__name__
        if write.attempt > 1:
            metrics.count(runtime_metrics.WRITES_AGAIN, self._kind, word)
        began = self._clock.monotonic()
        with self._spans.publishing(write, cause):
            self._log.debug(
                "writes", word=word, subject=write.subject, operation=write.operation, attempt=write.attempt
            )
            steps = self._traces.steps(write.request)
            answer = await self._bus.write(write, self._traces.headers(write.request) | steps)
            self._spans.published(write, unknown=isinstance(answer, events.WriteUnknown))
            self._log.debug("wrote", subject=write.subject, answer=answer)
            inside = current()
        if isinstance(answer, events.WriteAccepted):
            self._traces.told(write.request, steps)
        metrics.observe(runtime_metrics.WRITE_SECONDS, self._clock.monotonic() - began, self._kind)
        metrics.count(runtime_metrics.WRITES, self._kind, word, _ANSWERS[type(answer)])
        self._inbox.add((_Answer(answer, inside),))

    async def _read_last(self, wanted: events.ReadLast) -> None:
        backoff = Backoff()
        async with self._read_slots:
            while True:
                try:
                    entry = await self._prefetch.last(wanted)
                except TimeoutError:  # the broker is away; the core cannot write there before it knows
                    self._log.debug("no answer to a read", subject=wanted.subject)
                    await self._clock.sleep(backoff.next_s())
                else:
                    self._inbox.add((events.LastRead(wanted.subject, entry),))
                    return

    async def _carry_out(self, doing: "_Doing[E]") -> None:
        async with doing.how.slots:
            with self._span_of(doing):
                began = self._clock.monotonic()
                event = await doing.how.run(doing.instruction)
                inside = current()
        self._carried_out(doing, event, inside, self._clock.monotonic() - began)

    def _span_of(self, doing: "_Doing[E]") -> AbstractContextManager[None]:
        how, instruction = doing.how, doing.instruction
        attributes = of_instruction(instruction) if self._traces.recording else NO_ATTRIBUTES
        said = how.within(instruction) if how.within is not None else ""
        step = type(instruction).__name__
        return self._traces.span(step, doing.request, parent=doing.cause or said, attributes=attributes)

    def _carried_out(self, doing: "_Doing[E]", event: E | None, inside: str, took_s: float) -> None:
        instruction, request = doing.instruction, doing.request
        step = type(instruction).__name__
        outcome = type(event).__name__ if event is not None else "nothing"
        metrics.observe(runtime_metrics.ACTION_SECONDS, took_s, self._kind, step, outcome)
        self._traces.took(request, step, took_s)
        self._spans.did(instruction, request)
        if event is not None:
            self._inbox.add((_Answer(event, inside),))

    async def _carry_out_lane(self, key: Hashable) -> None:
        lane = self._lanes[key]
        while lane:
            await self._carry_out(lane.popleft())
        del self._lanes[key]
