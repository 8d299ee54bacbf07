"""
The rules of writing (PROTOCOL §2) as a state machine, so that no core has to know them by heart.

A core says what it wants on the bus; the outbox turns that into guarded writes, one in flight per guard, and settles
what has no answer by writing again, never by a read. Two ways of wanting:

* `keep`: the last value of a subject shall be this message. Written again whenever it is found to be something else
  (a rebuildable stream may forget what it acknowledged).
* `commit`: write once, if nothing under the guard has changed since the core looked. Ends in exactly one `Settled`.

The guard is always the highest sequence that was observed in order, or the sequence of an own accepted write (nothing
can lie between that and its expected value). It is never fetched and never taken from a refusal.

It must not decide anything: whether a contested value is worth fighting for is the core's question (`Contested`).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from sluice.contracts.exchange import (
    Entry,
    ExchangeEvent,
    ExchangeInstruction,
    LastRead,
    Observed,
    ReadAgain,
    ReadingCaughtUp,
    ReadingStarted,
    ReadLast,
    Stream,
    Write,
    WriteAccepted,
    WriteRefused,
    WriteUnknown,
    stream_of,
)
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import AnyMessage
from sluice.contracts.subjects import Address, parse

IN_FLIGHT_MAX = 256
"""Writes without an answer at any moment; the rest wait here, where they can still be replaced."""
EXPLAIN_TIMEOUT_S = 2.0
"""How long a refusal may stay unexplained by what is read before the reader is started anew."""


_EXPLAINED_BY_READING = -1


@dataclass(frozen=True, slots=True)
class Settled:
    """A commit ended: the message is the last value of its subject (`landed`), or something else was first."""

    operation: OperationId
    address: Address
    message: AnyMessage
    landed: bool


@dataclass(frozen=True, slots=True)
class Contested:
    """Somebody else wrote a subject that is kept. Unless the core forgets it, it will be written again."""

    address: Address
    entry: Entry


Report = Settled | Contested


@dataclass(slots=True)
class _Flight:
    operation: OperationId
    address: Address
    message: AnyMessage
    request: str
    ttl_s: int | None
    kind: Literal["commit", "keep"]
    expected: int = 0
    attempt: int = 0
    refused_at: int | None = None
    """The refusing sequence; _EXPLAINED_BY_READING when reading on cannot explain the refusal."""
    refused_since: float = 0.0
    refused_in_reading: int = 0
    """A reading that began after this one explains the refusal, whatever it shows."""


@dataclass(slots=True)
class _Lane:
    guard: str
    stream: Stream
    applied: int | None
    """The guard's value. None when it was not read yet (direct reading only)."""
    flight: _Flight | None = None
    commits: deque[_Flight] = field(default_factory=deque)
    dirty: dict[str, None] = field(default_factory=dict)
    """Kept subjects to write, in order."""
    reading: bool = False


@dataclass(slots=True)
class _Reading:
    number: int = 0
    caught_up: bool = False
    asked_again: bool = False
    highest: int = 0
    fresh: dict[str, Entry] | None = None
    """What was observed since the reading started; None once it has caught up."""
    accepted: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Kept:
    address: Address
    message: AnyMessage
    request: str
    ttl_s: int | None


class Outbox:
    """
    What one core wants on the bus, and how far it is.

    `kinds` are the nouns this core writes; entries of others are not remembered. With `reading="stream"` guards come
    from `Observed`; with `reading="last"` (agents, which may read no stream of their own words) from `ReadLast`.
    """

    def __init__(self, run: RunId, kinds: frozenset[str], *, reading: Literal["stream", "last"] = "stream") -> None:
        """Start with nothing wanted and nothing known."""
        self._run = run
        self._kinds = kinds
        self._reading = reading
        self._number = 0
        self._lanes: dict[str, _Lane] = {}
        self._current: dict[str, Entry] = {}
        self._kept: dict[str, _Kept] = {}
        self._in_flight: dict[OperationId, _Lane] = {}
        self._pump: dict[str, None] = {}
        self._out: list[ExchangeInstruction] = []
        self._readings: dict[Stream, _Reading] = {}
        self.paused = False
        """While set, nothing new is sent; what is in flight is still settled."""

    # -- wanting --------------------------------------------------------------------------------------------------

    def commit(
        self, address: Address, message: AnyMessage, *, request: str = "", ttl_s: int | None = None
    ) -> OperationId:
        """Write `message` once, guarded by what is known now or known when its turn comes. Ends in one `Settled`."""
        flight = self._new_flight(address, message, request, ttl_s, "commit")
        self._lane(address).commits.append(flight)
        self._pump[address.guard] = None
        return flight.operation

    def cancel(self, address: Address, operation: OperationId) -> bool:
        """Take back a commit that was not sent. False when it is too late: then its `Settled` will come."""
        lane = self._lane(address)
        left = deque(flight for flight in lane.commits if flight.operation != operation)
        taken = len(left) < len(lane.commits)
        lane.commits = left
        return taken

    def keep(self, address: Address, message: AnyMessage, *, request: str = "", ttl_s: int | None = None) -> None:
        """See to it that `message` is the last value. With a TTL it is written once and then forgotten."""
        kept = _Kept(address, message, request, ttl_s)
        if self._kept.get(address.subject) == kept:
            return
        self._kept[address.subject] = kept
        self._mark(kept)

    def forget(self, address: Address) -> None:
        """Stop keeping a subject. What is on the bus stays there."""
        self._kept.pop(address.subject, None)
        lane = self._lanes.get(address.guard)
        if lane is not None:
            lane.dirty.pop(address.subject, None)

    def kept(self, address: Address) -> AnyMessage | None:
        """What is being kept at an address."""
        kept = self._kept.get(address.subject)
        return kept.message if kept is not None else None

    def busy(self, address: Address) -> bool:
        """Whether a commit to exactly this subject waits or is unanswered."""
        lane = self._lanes.get(address.guard)
        if lane is None:
            return False
        if lane.flight is not None and lane.flight.address.subject == address.subject:
            return True
        return any(flight.address.subject == address.subject for flight in lane.commits)

    def current(self, address: Address) -> Entry | None:
        """The last value known at an address."""
        return self._current.get(address.subject)

    def knows(self, subject: str) -> bool:
        """Whether a value is known at `subject`: observed in the last reading, or written since."""
        return subject in self._current

    def recheck(self) -> None:
        """Compare everything kept with the bus again (direct reading: after every reconnect)."""
        for kept in self._kept.values():
            lane = self._lane(kept.address)
            lane.applied = None
            lane.reading = False
            self._current.pop(kept.address.subject, None)
            self._mark(kept)

    # -- hearing --------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[Report]:
        """Take in one event of the exchange. Returns what the core must know."""
        match event:
            case ReadingStarted():
                return self._reading_started(event)
            case Observed():
                return self._observe(event.entry)
            case ReadingCaughtUp():
                return self._reading_caught_up(event.stream)
            case WriteAccepted():
                return self._accept(event)
            case WriteRefused():
                return self._refuse(event, now)
            case WriteUnknown():
                self._resend(event.operation)
                return []
            case LastRead():
                return self._last_read(event)

    def tick(self, now: float) -> None:
        """Start a reader anew where a refusal has stayed unexplained."""
        for lane in self._in_flight.values():
            flight = lane.flight
            if flight is not None and flight.refused_at is not None and now - flight.refused_since > EXPLAIN_TIMEOUT_S:
                flight.refused_since = now
                self._read_to_explain(lane, flight)

    def drain(self) -> list[ExchangeInstruction]:
        """What to do now. Call at the end of every `handle` of the core."""
        while self._pump and not self.paused and len(self._in_flight) < IN_FLIGHT_MAX:
            guard = next(iter(self._pump))
            del self._pump[guard]
            lane = self._lanes.get(guard)
            if lane is not None:
                self._advance(lane)
        out, self._out = self._out, []
        return out

    # -- inside: sending ------------------------------------------------------------------------------------------

    def _lane(self, address: Address) -> _Lane:
        lane = self._lanes.get(address.guard)
        if lane is None:
            lane = _Lane(address.guard, stream_of(address.kind), 0 if self._reading == "stream" else None)
            self._lanes[address.guard] = lane
        return lane

    def _new_flight(
        self, address: Address, message: AnyMessage, request: str, ttl_s: int | None, kind: Literal["commit", "keep"]
    ) -> _Flight:
        self._number += 1
        return _Flight(OperationId(f"{self._run}-{self._number}"), address, message, request, ttl_s, kind)

    def _mark(self, kept: _Kept) -> None:
        self._lane(kept.address).dirty[kept.address.subject] = None
        self._pump[kept.address.guard] = None

    def _advance(self, lane: _Lane) -> None:
        """Send the lane's next write, if it is free and its guard is known."""
        if lane.flight is not None or not (lane.commits or lane.dirty):
            return
        if self._reading == "stream" and not self._caught_up(lane.stream):
            return
        if lane.applied is None:
            if not lane.reading:
                lane.reading = True
                self._out.append(ReadLast(lane.stream, lane.guard))
            return
        flight = lane.commits.popleft() if lane.commits else self._next_dirty(lane)
        if flight is None:
            self._drop_if_idle(lane)
            return
        flight.expected = lane.applied
        lane.flight = flight
        self._in_flight[flight.operation] = lane
        self._send(lane, flight)

    def _next_dirty(self, lane: _Lane) -> _Flight | None:
        while lane.dirty:
            subject = next(iter(lane.dirty))
            del lane.dirty[subject]
            kept = self._kept.get(subject)
            current = self._current.get(subject)
            if kept is None:
                continue
            if current is None or current.message != kept.message:
                return self._new_flight(kept.address, kept.message, kept.request, kept.ttl_s, "keep")
            self._done_keeping(kept)
        return None

    def _done_keeping(self, kept: _Kept) -> None:
        """A closing word has been said; nobody has to see to it any more."""
        if kept.ttl_s is not None and self._kept.get(kept.address.subject) == kept:
            del self._kept[kept.address.subject]

    def _send(self, lane: _Lane, flight: _Flight) -> None:
        flight.attempt += 1
        self._out.append(
            Write(
                operation=flight.operation,
                attempt=flight.attempt,
                stream=lane.stream,
                subject=flight.address.subject,
                guard=lane.guard,
                expected=flight.expected,
                message=flight.message,
                request=flight.request,
                ttl_s=flight.ttl_s,
            )
        )

    # -- inside: answers ------------------------------------------------------------------------------------------

    def _accept(self, event: WriteAccepted) -> list[Report]:
        lane = self._in_flight.get(event.operation)
        if lane is None or lane.flight is None:
            return []
        entry = Entry(lane.flight.address.subject, event.sequence, event.operation, lane.flight.message)
        reading = self._readings.get(lane.stream)
        if reading is not None and reading.fresh is not None:
            reading.accepted[entry.subject] = entry
        return self._learn(lane, entry)

    def _refuse(self, event: WriteRefused, now: float) -> list[Report]:
        lane = self._in_flight.get(event.operation)
        if lane is None or lane.flight is None:
            return []
        flight = lane.flight
        flight.refused_since = now
        flight.refused_in_reading = self._readings[lane.stream].number if lane.stream in self._readings else 0
        if event.last_sequence is None or event.last_sequence <= flight.expected or self._reading == "last":
            # The guard stepped back (closing words expired, or the broker was wiped): only a new reading can tell.
            flight.refused_at = _EXPLAINED_BY_READING
            self._read_to_explain(lane, flight)
            return []
        flight.refused_at = event.last_sequence
        return self._settle_if_explained(lane)

    def _resend(self, operation: OperationId) -> None:
        """No answer: the same value, the same operation, the same guard, once more (W3)."""
        lane = self._in_flight.get(operation)
        if lane is not None and lane.flight is not None and lane.flight.refused_at is None:
            self._send(lane, lane.flight)

    def _read_to_explain(self, lane: _Lane, flight: _Flight) -> None:
        if self._reading == "last":
            lane.reading = True
            self._out.append(ReadLast(lane.stream, flight.address.subject))
            return
        reading = self._readings.get(lane.stream)
        if reading is not None and reading.fresh is None and not reading.asked_again:
            reading.asked_again = True
            self._out.append(ReadAgain(lane.stream))

    # -- inside: reading ------------------------------------------------------------------------------------------

    def _caught_up(self, stream: Stream) -> bool:
        reading = self._readings.get(stream)
        return reading is not None and reading.caught_up

    def _reading_started(self, event: ReadingStarted) -> list[Report]:
        if self._reading == "last":
            return []
        reading = self._readings.setdefault(event.stream, _Reading())
        reading.number += 1
        reading.fresh = {}
        reading.accepted = {}
        reading.asked_again = False
        reading.highest = 0
        return []

    def _observe(self, entry: Entry) -> list[Report]:
        kind = entry.subject.split(".", 2)[1]
        if kind not in self._kinds or self._reading == "last":
            return []
        address = parse(entry.subject)
        lane = self._lane(address)
        reading = self._readings.get(lane.stream)
        if reading is not None:
            reading.highest = max(reading.highest, entry.sequence)
            if reading.fresh is not None:
                reading.fresh[entry.subject] = entry
        return self._learn(lane, entry)

    def _learn(self, lane: _Lane, entry: Entry) -> list[Report]:
        """One value is now known to be at its subject."""
        lane.applied = max(lane.applied or 0, entry.sequence)
        known = self._current.get(entry.subject)
        if known is None or known.sequence < entry.sequence:
            self._current[entry.subject] = entry
        flight = lane.flight
        if flight is not None and flight.operation == entry.operation:
            return self._settle(lane, landed=True)
        reports: list[Report] = []
        kept = self._kept.get(entry.subject)
        current = self._current[entry.subject]
        if kept is not None and current is entry and entry.message != kept.message:
            reports.append(Contested(kept.address, entry))
            self._mark(kept)
        return reports + self._settle_if_explained(lane)

    def _settle_if_explained(self, lane: _Lane) -> list[Report]:
        flight = lane.flight
        if flight is None or flight.refused_at is None or flight.refused_at == _EXPLAINED_BY_READING:
            return []
        if (lane.applied or 0) < flight.refused_at:
            return []
        return self._settle_by_current(lane, flight)

    def _settle_by_current(self, lane: _Lane, flight: _Flight) -> list[Report]:
        current = self._current.get(flight.address.subject)
        return self._settle(lane, landed=current is not None and current.operation == flight.operation)

    def _settle(self, lane: _Lane, *, landed: bool) -> list[Report]:
        flight = lane.flight
        assert flight is not None
        lane.flight = None
        del self._in_flight[flight.operation]
        self._pump[lane.guard] = None
        if flight.kind == "commit":
            return [Settled(flight.operation, flight.address, flight.message, landed)]
        kept = self._kept.get(flight.address.subject)
        if kept is not None:
            self._mark(kept)  # compared once more: it may have been replaced meanwhile, or have lost
        return []

    def _reading_caught_up(self, stream: Stream) -> list[Report]:
        reading = self._readings.get(stream)
        if reading is None or reading.fresh is None or self._reading == "last":
            return []
        # What was accepted while the snapshot was read, and lies beyond it, is still on its way to us.
        for subject, entry in reading.accepted.items():
            if entry.sequence > reading.highest:
                reading.fresh[subject] = entry
        fresh, reading.fresh, reading.caught_up = reading.fresh, None, True
        kept_elsewhere = {s: e for s, e in self._current.items() if stream_of(s.split(".", 2)[1]) is not stream}
        self._current = kept_elsewhere | fresh
        applied: dict[str, int] = {}
        for subject, entry in fresh.items():
            guard = parse(subject).guard
            applied[guard] = max(applied.get(guard, 0), entry.sequence)
        reports: list[Report] = []
        for lane in [lane for lane in self._lanes.values() if lane.stream is stream]:
            lane.applied = applied.get(lane.guard, 0)
            flight = lane.flight
            if flight is not None and flight.refused_at is not None and flight.refused_in_reading < reading.number:
                reports += self._settle_by_current(lane, flight)
            if lane.flight is None and not lane.commits and not lane.dirty and not lane.applied:
                del self._lanes[lane.guard]  # nothing known, nothing wanted: memory does not grow with history
            else:
                self._pump[lane.guard] = None
        for kept in self._kept.values():
            if stream_of(kept.address.kind) is stream:
                self._mark(kept)
        return reports

    def _last_read(self, event: LastRead) -> list[Report]:
        lane = self._lanes.get(event.subject)
        if lane is None:
            return []
        lane.reading = False
        lane.applied = event.entry.sequence if event.entry is not None else 0
        if event.entry is not None:
            self._current[event.subject] = event.entry
        else:
            self._current.pop(event.subject, None)
        self._pump[lane.guard] = None
        if lane.flight is not None and lane.flight.refused_at is not None:
            return self._settle_by_current(lane, lane.flight)
        return []

    def _drop_if_idle(self, lane: _Lane) -> None:
        """A lane that knows nothing and wants nothing is forgotten, so that memory does not grow with history."""
        if lane.flight is None and not lane.commits and not lane.dirty and self._reading == "last":
            subject = lane.guard
            if subject not in self._kept:
                self._current.pop(subject, None)
                self._lanes.pop(lane.guard, None)
