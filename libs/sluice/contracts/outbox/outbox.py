"""What one core wants on the bus, turned into guarded writes.

The guard is always the highest sequence observed in order, or that of an own accepted write. It is never fetched."""

from typing import Literal

import msgspec

from sluice.contracts.bus import events
from sluice.contracts.bus.subjects import Address, parse
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import AnyMessage
from sluice.contracts.outbox.guard_queue import EXPLAINED_BY_READING, IN_FLIGHT_MAX, GuardQueue, QueuedWrite
from sluice.contracts.outbox.intents import Intents

EXPLAIN_TIMEOUT_S = 2.0
"""How long a refusal may stay unexplained by reading before the reader is restarted."""
REREAD_S = 0.4
"""Delay before the next direct read when one was too old: the server lags, and would refuse in a tight loop."""
LAGS_MAX_S = 10.0
"""No server that is read directly lags longer behind an entry that refused a write: after it, that entry is gone."""


class Settled(msgspec.Struct, frozen=True):
    """A commit ended: the message is the last value of its subject (`landed`), or another write came first."""

    operation: OperationId
    address: Address
    message: AnyMessage
    landed: bool


class Contested(msgspec.Struct, frozen=True):
    """Another process wrote a subject that is kept. Unless the core forgets it, it will be written again."""

    address: Address
    entry: events.Entry


OutboxReport = Settled | Contested


class Outbox(Intents):
    """What one core wants on the bus, and the progress of its writes.

    `kinds` are the subject kinds this core writes. With `reading="stream"` guards come from `Observed`; with
    `reading="last"` (agents, which may not read the stream of their own statuses) from `ReadLast`."""

    def __init__(self, run: RunId, kinds: frozenset[str], *, reading: Literal["stream", "last"] = "stream") -> None:
        super().__init__(run, reading)
        self._kinds = kinds
        self._in_flight: dict[OperationId, GuardQueue] = {}
        self._out: list[events.BusInstruction] = []
        self.paused = False
        """While set, nothing new is sent; writes in flight are still settled."""

    @property
    def is_settled(self) -> bool:
        """Whether no write is in flight."""
        return not self._in_flight

    def handle(self, event: events.BusEvent, now: float) -> list[OutboxReport]:
        """Take in one event of the exchange. Returns events for the core."""
        match event:
            case events.Observed():
                return self._observe(event.entry)
            case events.WriteAccepted():
                return self._accept(event)
            case events.WriteRefused():
                return self._refuse(event, now)
            case events.WriteUnknown():
                self._resend(event.operation)
                return []
            case events.ReadingStarted():
                if self._reading == "stream" and self._view.started(event.stream, event.incarnation):
                    for queue in self._queues.values():
                        queue.applied = 0 if queue.stream is event.stream else queue.applied
                return []
            case events.ReadingCaughtUp():
                return self._reading_caught_up(event.stream)
            case events.LastRead():
                return self._last_read(event, now)

    def tick(self, now: float) -> None:
        """Restart a reader, or read again, where a refusal has stayed unexplained."""
        for queue in self._in_flight.values():
            in_flight = queue.in_flight
            looked = self._reading == "last" and not queue.reading
            longest_s = REREAD_S if looked else EXPLAIN_TIMEOUT_S
            if in_flight is not None and in_flight.refused_at is not None and now - in_flight.refused_since > longest_s:
                in_flight.refused_since = now
                self._read_to_explain(queue, in_flight)

    def drain(self) -> list[events.BusInstruction]:
        """The instructions to carry out now. Call at the end of every `handle` of the core."""
        if self._ready and not self.paused:
            while self._ready and len(self._in_flight) < IN_FLIGHT_MAX:
                queue = self._queues.get(self._ready.popitem(last=False)[0])
                if queue is not None:
                    self._advance(queue)
        if not self._out:
            return []
        out, self._out = self._out, []
        return out

    def _advance(self, queue: GuardQueue) -> None:
        """Send the queue's next write, if none is in flight and its guard is known."""
        if queue.in_flight is not None or not (queue.commits or queue.dirty):
            return
        if self._reading == "stream" and not self._view.is_whole(queue.stream):
            return
        if queue.applied is None:
            if not queue.reading:
                queue.reading = True
                self._out.append(events.ReadLast(queue.stream, queue.guard))
            return
        in_flight = queue.commits.popitem(last=False)[1] if queue.commits else self._next_dirty(queue)
        if in_flight is None:
            self._drop_if_idle(queue)
            return
        in_flight.expected = queue.applied
        if self._reading == "last":
            queue.expects(in_flight.expected)
        queue.in_flight = in_flight
        self._in_flight[in_flight.operation] = queue
        self._send(queue, in_flight)

    def _send(self, queue: GuardQueue, in_flight: QueuedWrite) -> None:
        in_flight.attempt += 1
        self._out.append(
            events.Write(
                operation=in_flight.operation,
                attempt=in_flight.attempt,
                stream=queue.stream,
                subject=in_flight.address.subject,
                guard=queue.guard,
                expected=in_flight.expected,
                message=in_flight.message,
                request=in_flight.request,
                ttl_s=in_flight.ttl_s,
            )
        )

    def _accept(self, event: events.WriteAccepted) -> list[OutboxReport]:
        queue = self._in_flight.get(event.operation)
        if queue is None or queue.in_flight is None:
            return []
        if self._reading == "stream" and self._view.is_gone(queue.stream, event.sequence):
            return self._settle_by_current(queue, queue.in_flight)
        address = queue.in_flight.address
        entry = events.Entry(address.subject, event.sequence, event.operation, queue.in_flight.message)
        self._view.accepted(queue.stream, entry)
        return self._learn(queue.stream, address, entry)

    def _refuse(self, event: events.WriteRefused, now: float) -> list[OutboxReport]:
        queue = self._in_flight.get(event.operation)
        if queue is None or queue.in_flight is None:
            return []
        in_flight = queue.in_flight
        in_flight.refused_since = in_flight.refused_first = now
        in_flight.refused_in_reading = self._view.number(queue.stream)
        stepped_back = event.last_sequence is None or event.last_sequence <= in_flight.expected
        # Where it did (closing messages expired, or the broker was wiped) only a new reading can show it.
        in_flight.refused_at = EXPLAINED_BY_READING if stepped_back else event.last_sequence
        if stepped_back or self._reading == "last":
            self._read_to_explain(queue, in_flight)
            return []
        return self._settle_if_explained(queue)

    def _resend(self, operation: OperationId) -> None:
        """No answer: send the same value, operation and guard once more (W3)."""
        queue = self._in_flight.get(operation)
        if queue is not None and queue.in_flight is not None and queue.in_flight.refused_at is None:
            self._send(queue, queue.in_flight)

    def _read_to_explain(self, queue: GuardQueue, in_flight: QueuedWrite) -> None:
        if self._reading == "last":
            queue.reading = True
            self._out.append(events.ReadLast(queue.stream, in_flight.address.subject))
        elif self._view.ask_again(queue.stream):
            self._out.append(events.ReadAgain(queue.stream))

    def _observe(self, entry: events.Entry) -> list[OutboxReport]:
        if self._reading == "last":
            return []
        kind = entry.subject.split(".", 2)[1]
        if kind not in self._kinds:
            return []
        stream = events.stream_of(kind)
        address = parse(entry.subject)
        self._view.observed(stream, address, entry)
        return self._learn(stream, address, entry)

    def _learn(self, stream: events.Stream, address: Address, entry: events.Entry) -> list[OutboxReport]:
        is_newest = self._view.learn(stream, address, entry)
        queue = self._queues.get(address.guard)
        if queue is not None:
            queue.applied = max(queue.applied or 0, entry.sequence)
            if queue.in_flight is not None and queue.in_flight.operation == entry.operation:
                return self._settle(queue, landed=True)
        reports: list[OutboxReport] = []
        kept = self._kept.get(entry.subject)
        if kept is not None and is_newest and entry.message != kept.message:
            reports.append(Contested(kept.address, entry))
            self._mark(kept)
        return reports + self._settle_if_explained(queue) if queue is not None else reports

    def _settle_if_explained(self, queue: GuardQueue) -> list[OutboxReport]:
        in_flight = queue.in_flight
        if in_flight is None or in_flight.refused_at is None or in_flight.refused_at == EXPLAINED_BY_READING:
            return []
        if (queue.applied or 0) < in_flight.refused_at:
            return []
        return self._settle_by_current(queue, in_flight)

    def _settle_by_current(self, queue: GuardQueue, in_flight: QueuedWrite) -> list[OutboxReport]:
        current = self._view.current[queue.stream].get(in_flight.address.subject)
        return self._settle(queue, landed=current is not None and current.operation == in_flight.operation)

    def _settle(self, queue: GuardQueue, *, landed: bool) -> list[OutboxReport]:
        in_flight = queue.in_flight
        assert in_flight is not None
        queue.in_flight = None
        del self._in_flight[in_flight.operation]
        if landed and self._reading == "last":
            self._landed[in_flight.address.subject] = in_flight.operation
            if queue.applied in queue.expected:
                # The stream lost its latest numbers and reuses them: a copy of the older write that expected this one
                # would land, and a direct reader would not notice. Written again with another number.
                self._view.current[queue.stream].pop(in_flight.address.subject, None)
        if self._reading == "stream" and queue.idle:
            del self._queues[queue.guard]
        else:
            self._ready[queue.guard] = None
        if in_flight.kind == "commit":
            self._end_committing(in_flight.address.subject)
            return [Settled(in_flight.operation, in_flight.address, in_flight.message, landed)]
        kept = self._kept.get(in_flight.address.subject)
        if kept is not None:
            self._mark(kept)  # compared once more: it may have been replaced meanwhile, or lost
        return []

    def _reading_caught_up(self, stream: events.Stream) -> list[OutboxReport]:
        if self._reading == "last" or not self._view.caught_up(stream):
            return []
        reports: list[OutboxReport] = []
        for queue in [queue for queue in self._queues.values() if queue.stream is stream]:
            queue.applied = self._guard_of(stream, queue.guard)
            in_flight = queue.in_flight
            refused = in_flight is not None and in_flight.refused_at is not None
            if in_flight is not None and refused and in_flight.refused_in_reading < self._view.number(stream):
                reports += self._settle_by_current(queue, in_flight)  # W3: the reading began after the refusal
            self._ready[queue.guard] = None
        for kept in self._kept.values():
            if events.stream_of(kept.address.kind) is stream:
                self._mark(kept)
        return reports

    def _last_read(self, event: events.LastRead, now: float) -> list[OutboxReport]:
        queue = self._queues.get(event.subject)
        if queue is None:
            return []
        queue.reading = False
        if queue.in_flight is not None and self._is_too_old(queue.in_flight, event.entry, now):
            return []  # read again later
        is_older = event.entry is not None and event.entry.sequence < (queue.applied or 0)
        queue.applied = event.entry.sequence if event.entry is not None else 0
        if event.entry is not None:
            self._view.current[queue.stream][event.subject] = event.entry
        else:
            self._view.current[queue.stream].pop(event.subject, None)
        self._ready[queue.guard] = None
        kept = self._kept.get(event.subject)
        if kept is not None and is_older:
            self._mark(kept)  # read before an own write landed, or of a new life: a write finds out which
        if queue.in_flight is not None and queue.in_flight.refused_at is not None:
            return self._settle_by_current(queue, queue.in_flight)
        return []

    def _is_too_old(self, in_flight: QueuedWrite, found: events.Entry | None, now: float) -> bool:
        """Whether a direct read is older than the entry that refused a write, because the server lags."""
        if in_flight.refused_at is None or in_flight.refused_at == EXPLAINED_BY_READING:
            return False
        is_older = (found.sequence if found is not None else 0) < in_flight.refused_at
        return is_older and now - in_flight.refused_first < LAGS_MAX_S
