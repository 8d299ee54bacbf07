"""
A synchronous model of the broker's streams: the base of the memory bus and of the simulator.

It has no clock, connection or faults: time comes in as `now`, and callers lose answers, delay writes or restart readers
outside. It behaves as the conformance suite observes nats-server, its traps included: a guard that does not cover the
written subject is accepted and does not protect that subject.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from sluice.contracts.bus.events import Entry, Stream, stream_of
from sluice.contracts.bus.streams import UNRECORDED_KINDS
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import Incarnation, NodeName, OperationId
from sluice.contracts.messages import AnyMessage

FIRST_SEQUENCE = 1_700_000_000_000
"""The first sequence of a stream created at now = 0: streams begin at their creation time in unix ms."""
HISTORY_MAX = 10_000
"""Messages that HISTORY holds; the oldest go first. A real one drops by age."""
FILTERS_REMEMBERED = 256
"""More than there are kinds of readers: each matches every value against its filters."""
UNDO_MAX = 256
"""Writes that `lose_latest` can take back."""


class PublishAccepted(msgspec.Struct, frozen=True):
    """The write landed at `sequence`."""

    sequence: int


class PublishRefused(msgspec.Struct, frozen=True):
    """The guard did not hold: `last` is the highest sequence under it, 0 when it is empty."""

    last: int


class StreamMissing(msgspec.Struct, frozen=True):
    """There is no such stream, so no answer."""


PublishOutcome = PublishAccepted | PublishRefused | StreamMissing


class StoredValue(msgspec.Struct, frozen=True):
    """One stored value: the entry, the request it is about, and its headers."""

    entry: Entry
    request: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    expires_at: float | None = None


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a NATS filter: `*` stands for one token, a last `>` for one or more."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, part in enumerate(wanted):
        if part == ">":
            return len(tokens) > at
        if at >= len(tokens) or part not in {"*", tokens[at]}:
            return False
    return len(wanted) == len(tokens)


@lru_cache(maxsize=FILTERS_REMEMBERED)
def _prefixes(filters: tuple[str, ...]) -> tuple[str, ...] | None:
    """Prefixes that exactly the subjects under these have; None where prefixes do not suffice."""
    if all(pattern.endswith(".>") and "*" not in pattern for pattern in filters):
        return tuple(pattern[:-1] for pattern in filters)
    return None


def is_under(filters: tuple[str, ...], subject: str) -> bool:
    """Whether a subject is under any of `filters`; no filters means everything."""
    if not filters:
        return True
    beginnings = _prefixes(filters)
    if beginnings is not None:
        return subject.startswith(beginnings)
    return any(matches(pattern, subject) for pattern in filters)


class Cursor:
    """
    A reader's position in one stream: first all values, then new ones, in the order of the stream.

    A value that is overwritten before it was read is skipped, as on the server. Once the stream was wiped, or lost its
    latest writes, the cursor is `lost`: it reads nothing more and the reading must restart.
    """

    def __init__(self, streams: "StreamModel", stream: Stream, filters: tuple[str, ...]) -> None:
        self._streams = streams
        self._stream = stream
        self._filters = filters
        self._life = streams.life(stream)
        self._position = 0

    @property
    def lost(self) -> bool:
        """Whether this position is in an ended incarnation of the stream."""
        return self._life is None or self._streams.life(self._stream) != self._life

    def has_upto(self, _sequence: int) -> bool:
        """Whether the server that is read has the stream up to there: there is no other that could have more."""
        return True

    def read(self, now: float, limit: int | None = None) -> list[StoredValue]:
        """The next values, at most `limit`, oldest first; empty when there is nothing new or the cursor is lost."""
        if self.lost:
            return []
        found: list[StoredValue] = []
        for value in self._streams.values_after(self._stream, self._position, now):
            if limit is not None and len(found) >= limit:
                return found
            entry = value.entry
            self._position = entry.sequence
            if is_under(self._filters, entry.subject):
                found.append(value)
        return found


class StreamModel:
    """BOOK, STATE and HISTORY, which has every accepted write but leases. `now` (s) never goes back between calls."""

    def __init__(self, now: float = 0.0) -> None:
        self._books: dict[Stream, _LastValueStream] = {}
        self._history = _HistoryStream()
        self._agents: dict[NodeName, None] = {}
        self._lives = 0
        self._first_next = 0
        self.ensure(now)

    def ensure(self, now: float, clock_off_s: float = 0.0) -> None:
        """Create missing streams; sequences begin at the creation time, by a clock that may be `clock_off_s` off."""
        for stream in (Stream.BOOK, Stream.STATE):
            if stream not in self._books:
                first = FIRST_SEQUENCE + int((now + clock_off_s) * 1000)
                self._first_next = first if clock_off_s else max(first, self._first_next)
                self._lives += 1
                self._books[stream] = _LastValueStream(self._first_next, self._lives)
        self._first_next += 1

    def ensure_agent(self, node: NodeName) -> None:
        """Create the durable by which a node's agent reads its ledger."""
        if Stream.BOOK in self._books:
            self._agents[node] = None

    def has_agent(self, node: NodeName) -> bool:
        return node in self._agents

    def has(self, stream: Stream) -> bool:
        return stream is Stream.HISTORY or stream in self._books

    def wipe(self, *, but: Stream | None = None) -> None:
        """Lose everything, `but` for one stream: values, streams and durables, until `ensure` recreates them."""
        self._books = {stream: book for stream, book in self._books.items() if stream is but}
        if but is not Stream.BOOK:
            self._agents.clear()
        self._history = _HistoryStream(self._history.life + 1)

    def lose_latest(self, stream: Stream, count: int) -> int:
        """Take back the latest `count` writes, as after a kill: sequences are reused. Returns how many."""
        book = self._books[stream]
        taken = book.undo(count)
        self._lives += 1
        book.life = self._lives
        return taken

    def publish(
        self,
        *,
        subject: str,
        guard: str | None,
        expected: int,
        operation: OperationId,
        message: AnyMessage | None,
        now: float,
        ttl_s: float | None = None,
        request: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> PublishOutcome:
        """Store a value (None: undecodable) if the highest sequence under `guard` (None: no guard) is `expected`."""
        kind = subject.split(".", 2)[1]
        book = self._books.get(stream_of(kind))
        if book is None:
            return StreamMissing()
        book.expire(now)
        if guard is not None and (last := book.highest(guard)) != expected:
            return PublishRefused(last)
        expires_at = now + ttl_s if ttl_s is not None else None
        entry = Entry(subject, book.sequence_next, operation, message)
        value = StoredValue(entry, request, dict(headers) if headers else _NO_HEADERS, expires_at)
        book.put(value)
        if kind not in UNRECORDED_KINDS:
            self._history.append(value)
        return PublishAccepted(entry.sequence)

    def last(self, subject: str, now: float) -> Entry | None:
        book = self._books.get(stream_of(subject.split(".", 2)[1]))
        if book is None:
            return None
        book.expire(now)
        value = book.values.get(subject)
        return value.entry if value is not None else None

    def highest(self, guard: str, now: float) -> int:
        """The highest sequence under a guard: what a write must expect."""
        book = self._books.get(stream_of(guard.split(".", 2)[1]))
        if book is None:
            return 0
        book.expire(now)
        return book.highest(guard)

    def snapshot(self, stream: Stream, filters: tuple[str, ...], now: float) -> list[Entry]:
        """Every last value under `filters` (all when empty), in the order of the stream."""
        return [value.entry for value in self.values_after(stream, 0, now) if is_under(filters, value.entry.subject)]

    def cursor(self, stream: Stream, filters: tuple[str, ...] = ()) -> Cursor:
        """A position to read from. It is lost at once when there is no such stream."""
        return Cursor(self, stream, filters)

    def incarnation(self, stream: Stream) -> Incarnation | None:
        """The incarnation of the data: the stream's first sequence. None when there is no stream."""
        if stream is Stream.HISTORY:
            return Incarnation(str(self._history.life))
        book = self._books.get(stream)
        return Incarnation(str(book.first_sequence)) if book is not None else None

    def ends_at(self, stream: Stream) -> int:
        """The last sequence that was given in a stream; 0 where there is none."""
        book = self._books.get(stream)
        return book.sequence_next - 1 if book is not None else 0

    def life(self, stream: Stream) -> int | None:
        """A number that changes whenever positions in the stream become invalid; None without a stream."""
        if stream is Stream.HISTORY:
            return self._history.life
        book = self._books.get(stream)
        return book.life if book is not None else None

    def values_after(self, stream: Stream, sequence: int, now: float) -> list[StoredValue]:
        """Values stored beyond a sequence, in the order of the stream."""
        if stream is Stream.HISTORY:
            return self._history.after(sequence)
        book = self._books.get(stream)
        if book is None:
            return []
        book.expire(now)
        return book.after(sequence)


class _LastValueStream:
    """One last-value stream. `values` is in the order of sequences: a new value moves its subject to the end."""

    def __init__(self, first_sequence: int, life: int) -> None:
        self.first_sequence = first_sequence
        self.sequence_next = first_sequence
        self.life = life
        self.values: dict[str, StoredValue] = {}
        self._under: dict[str, dict[str, int]] = {}
        self._expiring: list[tuple[float, int, str]] = []
        self._undo: deque[tuple[str, StoredValue | None]] = deque(maxlen=UNDO_MAX)

    def put(self, value: StoredValue) -> None:
        subject, sequence = value.entry.subject, value.entry.sequence
        self._undo.append((subject, self.values.get(subject)))
        self._remove(subject)
        self._insert(value)
        self.sequence_next = sequence + 1
        if value.expires_at is not None:
            heapq.heappush(self._expiring, (value.expires_at, sequence, subject))

    def expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            at, sequence, subject = heapq.heappop(self._expiring)
            value = self.values.get(subject)
            # Both: a write taken back has left its time here, and its sequence now belongs to another.
            if value is not None and (value.entry.sequence, value.expires_at) == (sequence, at):
                self._remove(subject)

    def highest(self, guard: str) -> int:
        if not guard.endswith(".>"):
            value = self.values.get(guard)
            return value.entry.sequence if value is not None else 0
        under = self._under.get(guard)
        if under is None:
            under = {s: value.entry.sequence for s, value in self.values.items() if matches(guard, s)}
            self._under[guard] = under
        return under[next(reversed(under))] if under else 0

    def after(self, sequence: int) -> list[StoredValue]:
        if sequence >= self.sequence_next - 1:
            return []
        found: list[StoredValue] = []
        for value in reversed(self.values.values()):
            if value.entry.sequence <= sequence:
                break
            found.append(value)
        found.reverse()
        return found

    def undo(self, count: int) -> int:
        taken = 0
        while taken < count and self._undo:
            subject, before = self._undo.pop()
            self.sequence_next -= 1
            self._remove(subject)
            if before is not None:
                self.values[subject] = before
                if before.expires_at is not None:
                    heapq.heappush(self._expiring, (before.expires_at, before.entry.sequence, subject))
            taken += 1
        self.values = dict(sorted(self.values.items(), key=lambda item: item[1].entry.sequence))
        self._under.clear()
        return taken

    def _insert(self, value: StoredValue) -> None:
        subject = value.entry.subject
        self.values[subject] = value
        for under in self._indexes(subject):
            under[subject] = value.entry.sequence

    def _remove(self, subject: str) -> None:
        self.values.pop(subject, None)
        for under in self._indexes(subject):
            under.pop(subject, None)

    def _indexes(self, subject: str) -> Iterator[dict[str, int]]:
        end = subject.rfind(".")
        while end > 0:
            under = self._under.get(f"{subject[:end]}.>")
            if under is not None:
                yield under
            end = subject.rfind(".", 0, end)


class _HistoryStream:
    """All messages in order, each under a sequence of its own."""

    def __init__(self, life: int = 1) -> None:
        self.life = life
        self._sequence = 0
        self._said: deque[StoredValue] = deque(maxlen=HISTORY_MAX)
        """As written: messages get their place in HISTORY when it is read."""

    def append(self, value: StoredValue) -> None:
        self._sequence += 1
        self._said.append(value)

    def after(self, sequence: int) -> list[StoredValue]:
        first = self._sequence - len(self._said) + 1
        skip = max(0, sequence + 1 - first)
        return [_in_history(value, first + at) for at, value in enumerate(self._said) if at >= skip]


def _in_history(value: StoredValue, sequence: int) -> StoredValue:
    entry = value.entry
    copy = Entry(HISTORY_PREFIX + entry.subject, sequence, entry.operation, entry.message)
    return StoredValue(copy, value.request, value.headers)
