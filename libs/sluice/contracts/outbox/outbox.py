"""
What one core wants on the bus, turned into guarded writes.

The guard is always the highest sequence that was observed in order, or the sequence of an own accepted write (nothing
can lie between that and its expected value, which was observed). It is never fetched and never taken from a refusal.
"""

from typing import Literal

import msgspec

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
from sluice.contracts.outbox.lanes import EXPLAINED_BY_READING, IN_FLIGHT_MAX, Flight, Lane
from sluice.contracts.outbox.wishes import Wishes
from sluice.contracts.subjects import Address, parse

EXPLAIN_TIMEOUT_S = 2.0
"""How long a refusal may stay unexplained by what is read before the reader is started anew."""
LOOK_AGAIN_S = 0.4
"""
So long after a direct look that was older than what had refused a write the next one follows: the server that has
answered lags, and a write at what it shows would be refused again, at the speed of the bus.
"""
LAGS_MAX_S = 10.0
"""
A reading that ends before what has refused a write was served by a server that lags. None lags for longer than this:
what refused it is not there any more, a closing word that has run out.
"""


class Settled(msgspec.Struct, frozen=True):
    """A commit ended: the message is the last value of its subject (`landed`), or something else was first."""

    operation: OperationId
    address: Address
    message: AnyMessage
    landed: bool


class Contested(msgspec.Struct, frozen=True):
    """Somebody else wrote a subject that is kept. Unless the core forgets it, it will be written again."""

    address: Address
    entry: Entry


Report = Settled | Contested


class Outbox(Wishes):
    """
    What one core wants on the bus, and how far it is.

    `kinds` are the nouns this core writes; entries of others are not remembered. With `reading="stream"` guards come
    from `Observed`; with `reading="last"` (agents, which may read no stream of their own words) from `ReadLast`.
    """

    def __init__(self, run: RunId, kinds: frozenset[str], *, reading: Literal["stream", "last"] = "stream") -> None:
        """Start with nothing wanted and nothing known."""
        super().__init__(run, reading)
        self._kinds = kinds
        self._in_flight: dict[OperationId, Lane] = {}
        self._out: list[ExchangeInstruction] = []
        self.paused = False
        """While set, nothing new is sent; what is in flight is still settled."""

    # -- hearing --------------------------------------------------------------------------------------------------

    def handle(self, event: ExchangeEvent, now: float) -> list[Report]:
        """Take in one event of the exchange. Returns what the core must know."""
        match event:
            case Observed():
                return self._observe(event.entry)
            case WriteAccepted():
                return self._accept(event)
            case WriteRefused():
                return self._refuse(event, now)
            case WriteUnknown():
                self._resend(event.operation)
                return []
            case ReadingStarted():
                if self._reading == "stream":
                    self._known.started(event.stream, event.incarnation)
                return []
            case ReadingCaughtUp():
                return self._reading_caught_up(event.stream, now)
            case LastRead():
                return self._last_read(event, now)

    def tick(self, now: float) -> None:
        """Start a reader anew, or look again, where a refusal has stayed unexplained."""
        for lane in self._in_flight.values():
            flight = lane.flight
            looked = self._reading == "last" and not lane.reading
            longest_s = LOOK_AGAIN_S if looked else EXPLAIN_TIMEOUT_S
            if flight is not None and flight.refused_at is not None and now - flight.refused_since > longest_s:
                flight.refused_since = now
                self._read_to_explain(lane, flight)

    def drain(self) -> list[ExchangeInstruction]:
        """What to do now. Call at the end of every `handle` of the core."""
        if self._pump.guards and not self.paused:
            while self._pump.guards and len(self._in_flight) < IN_FLIGHT_MAX:
                lane = self._lanes.get(self._pump.take())
                if lane is not None:
                    self._advance(lane)
        if not self._out:
            return []
        out, self._out = self._out, []
        return out

    # -- inside: sending ------------------------------------------------------------------------------------------

    def _advance(self, lane: Lane) -> None:
        """Send the lane's next write, if it is free and its guard is known."""
        if lane.flight is not None or not (lane.commits or lane.dirty):
            return
        if self._reading == "stream" and not self._known.is_whole(lane.stream):
            return
        if lane.applied is None:
            if not lane.reading:
                lane.reading = True
                self._out.append(ReadLast(lane.stream, lane.guard))
            return
        flight = lane.commits.popitem(last=False)[1] if lane.commits else self._next_dirty(lane)
        if flight is None:
            self._drop_if_idle(lane)
            return
        flight.expected = lane.applied
        if self._reading == "last":
            lane.expects(flight.expected)
        lane.flight = flight
        self._in_flight[flight.operation] = lane
        self._send(lane, flight)

    def _send(self, lane: Lane, flight: Flight) -> None:
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
        if self._reading == "stream" and self._known.is_gone(lane.stream, event.sequence):
            return self._settle_by_current(lane, lane.flight)
        address, expected = lane.flight.address, lane.flight.expected
        entry = Entry(address.subject, event.sequence, event.operation, lane.flight.message)
        self._known.accepted(lane.stream, entry, expected)
        return self._learn(lane.stream, address, entry, expected)

    def _refuse(self, event: WriteRefused, now: float) -> list[Report]:
        lane = self._in_flight.get(event.operation)
        if lane is None or lane.flight is None:
            return []
        flight = lane.flight
        flight.refused_since = flight.refused_first = now
        flight.refused_in_reading = self._known.number(lane.stream)
        flight.refused_in_life = self._known.life(lane.stream)
        stepped_back = event.last_sequence is None or event.last_sequence <= flight.expected
        # Where it did (closing words expired, or the broker was wiped) only a new reading can tell.
        flight.refused_at = EXPLAINED_BY_READING if stepped_back else event.last_sequence
        if stepped_back or self._reading == "last":
            self._read_to_explain(lane, flight)
            return []
        return self._settle_if_explained(lane)

    def _resend(self, operation: OperationId) -> None:
        """No answer: the same value, the same operation, the same guard, once more (W3)."""
        lane = self._in_flight.get(operation)
        if lane is not None and lane.flight is not None and lane.flight.refused_at is None:
            self._send(lane, lane.flight)

    def _read_to_explain(self, lane: Lane, flight: Flight) -> None:
        if self._reading == "last":
            lane.reading = True
            self._out.append(ReadLast(lane.stream, flight.address.subject))
        elif self._known.ask_again(lane.stream):
            self._out.append(ReadAgain(lane.stream))

    # -- inside: reading ------------------------------------------------------------------------------------------

    def _observe(self, entry: Entry) -> list[Report]:
        if self._reading == "last":
            return []
        kind = entry.subject.split(".", 2)[1]
        if kind not in self._kinds:
            return []
        stream = stream_of(kind)
        self._known.observed(stream, entry)
        return self._learn(stream, parse(entry.subject), entry)

    def _learn(self, stream: Stream, address: Address, entry: Entry, expected: int = 0) -> list[Report]:
        """One value is now known to be at its subject; `expected` is what an own write expected of its guard."""
        is_newest = self._known.learn(stream, address, entry, expected)
        lane = self._lanes.get(address.guard)
        if lane is not None:
            known_upto = lane.applied or 0
            if expected <= known_upto or address.guard == address.subject:
                lane.applied = max(known_upto, entry.sequence)
            if lane.flight is not None and lane.flight.operation == entry.operation:
                return self._settle(lane, landed=True)
        reports: list[Report] = []
        kept = self._kept.get(entry.subject)
        if kept is not None and is_newest and entry.message != kept.message:
            reports.append(Contested(kept.address, entry))
            self._mark(kept)
        return reports + self._settle_if_explained(lane) if lane is not None else reports

    def _settle_if_explained(self, lane: Lane) -> list[Report]:
        flight = lane.flight
        if flight is None or flight.refused_at is None or flight.refused_at == EXPLAINED_BY_READING:
            return []
        if (lane.applied or 0) < flight.refused_at:
            return []
        return self._settle_by_current(lane, flight)

    def _settle_by_current(self, lane: Lane, flight: Flight) -> list[Report]:
        current = self._known.current.get(flight.address.subject)
        return self._settle(lane, landed=current is not None and current.operation == flight.operation)

    def _settle(self, lane: Lane, *, landed: bool) -> list[Report]:
        flight = lane.flight
        assert flight is not None
        lane.flight = None
        del self._in_flight[flight.operation]
        if landed and self._reading == "last":
            self._landed[flight.address.subject] = flight.operation
            if lane.applied in lane.expected:
                # The stream has lost its latest numbers and gives them out anew: a copy of the older write that has
                # expected this one would land, and who reads no stream does not hear of it. Said with another number.
                self._known.current.pop(flight.address.subject, None)
        if self._reading == "stream" and lane.idle:
            del self._lanes[lane.guard]
        else:
            self._pump.add(lane.guard)
        if flight.kind == "commit":
            self._end_committing(flight.address.subject)
            return [Settled(flight.operation, flight.address, flight.message, landed)]
        kept = self._kept.get(flight.address.subject)
        if kept is not None:
            self._mark(kept)  # compared once more: it may have been replaced meanwhile, or have lost
        return []

    def _reading_caught_up(self, stream: Stream, now: float) -> list[Report]:
        if self._reading == "last" or not self._known.caught_up(stream):
            return []
        reports: list[Report] = []
        for lane in [lane for lane in self._lanes.values() if lane.stream is stream]:
            lane.applied = self._guard_of(stream, lane.guard)
            flight = lane.flight
            if flight is not None and self._is_explained(lane, flight, now):
                reports += self._settle_by_current(lane, flight)
            self._pump.add(lane.guard)
        for kept in self._kept.values():
            if stream_of(kept.address.kind) is stream:
                self._mark(kept)
        return reports

    def _is_explained(self, lane: Lane, flight: Flight, now: float) -> bool:
        """
        Whether the reading that has just ended tells what became of a write that was refused (W3).

        Not one that ends before what refused it: that may be the write itself. But STATE may forget what it
        acknowledged, and in another life of a stream nothing of the one before is there.
        """
        if flight.refused_at is None or flight.refused_in_reading >= self._known.number(lane.stream):
            return False
        ends_before = flight.refused_at != EXPLAINED_BY_READING and self._known.ends_at(lane.stream) < flight.refused_at
        of_this_life = self._known.life(lane.stream) == flight.refused_in_life
        if lane.stream is not Stream.BOOK or not ends_before or not of_this_life:
            return True
        return now - flight.refused_first >= LAGS_MAX_S

    def _last_read(self, event: LastRead, now: float) -> list[Report]:
        lane = self._lanes.get(event.subject)
        if lane is None:
            return []
        lane.reading = False
        if lane.flight is not None and self._is_too_old(lane.flight, event.entry, now):
            return []  # looked at again with time
        is_older = event.entry is not None and event.entry.sequence < (lane.applied or 0)
        lane.applied = event.entry.sequence if event.entry is not None else 0
        if event.entry is not None:
            self._known.current[event.subject] = event.entry
        else:
            self._known.current.pop(event.subject, None)
        self._pump.add(lane.guard)
        kept = self._kept.get(event.subject)
        if kept is not None and is_older:
            self._mark(kept)  # asked for before an own write landed, or of a new life: a write finds out which
        if lane.flight is not None and lane.flight.refused_at is not None:
            return self._settle_by_current(lane, lane.flight)
        return []

    def _is_too_old(self, flight: Flight, found: Entry | None, now: float) -> bool:
        """Whether what a direct look has found is older than what has refused a write, for a server that lags."""
        if flight.refused_at is None or flight.refused_at == EXPLAINED_BY_READING:
            return False
        is_older = (found.sequence if found is not None else 0) < flight.refused_at
        return is_older and now - flight.refused_first < LAGS_MAX_S
