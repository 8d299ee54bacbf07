"""A server with values of a moment ago (up to 240 ms on a real cluster of three, direct gets too); never written to."""

from collections import deque
from random import Random

from factories.broker.stream_model import Cursor, StoredValue, StreamModel, is_under

from sluice.contracts.bus.events import Entry, Stream, stream_of

STALE_OF = 0.7
"""So many of those who ask while it lags ask this server."""


class Lagging:
    """What one replica has."""

    def __init__(self, values: StreamModel, now: float, dice: Random) -> None:
        """It has everything up to now, and nothing that comes later, until `lags` is False."""
        self.lags = True
        self._dice = dice
        self._values = {
            stream: values.values_after(stream, 0, now) for stream in (Stream.BOOK, Stream.STATE) if values.has(stream)
        }
        self.ends_at = {stream: values.ends_at(stream) for stream in self._values}

    def answers(self) -> bool:
        """Whether it is this server that answers who asks now."""
        return self._dice.random() < STALE_OF

    def last(self, subject: str) -> Entry | None:
        """What it takes for the last value of a subject."""
        values = self._values.get(stream_of(subject.split(".", 2)[1]), [])
        return next((value.entry for value in values if value.entry.subject == subject), None)

    def cursor(self, values: StreamModel, stream: Stream, filters: tuple[str, ...]) -> "LaggingCursor":
        """A place to read from, which this server serves."""
        return LaggingCursor(values, stream, filters, self, self._values.get(stream, []))


class LaggingCursor(Cursor):
    """First what the replica had, then what is there since: in the order of the stream, as it catches up."""

    def __init__(
        self, values: StreamModel, stream: Stream, filters: tuple[str, ...], replica: Lagging, had: list[StoredValue]
    ) -> None:
        """Start before the first value."""
        super().__init__(values, stream, filters)
        self._replica = replica
        self._had = deque(had)

    def has_upto(self, sequence: int) -> bool:
        """Whether it has the stream up to there, and all of that was read."""
        return not self._had and (not self._replica.lags or self._replica.ends_at.get(self._stream, 0) >= sequence)

    def read(self, now: float, limit: int | None = None) -> list[StoredValue]:
        """As `Cursor.read`; what was overwritten meanwhile is read as it was."""
        if self.lost:
            return []
        found: list[StoredValue] = []
        while self._had and (limit is None or len(found) < limit):
            value = self._had.popleft()
            self._position = value.entry.sequence
            if is_under(self._filters, value.entry.subject):
                found.append(value)
        if self._had or self._replica.lags:
            return found
        return [*found, *super().read(now, limit - len(found) if limit is not None else None)]
