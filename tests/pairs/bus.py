"""The bus between two allocators: exact (`StreamModel`), and each reader is late by as much as is drawn for it."""

from collections.abc import Callable
from itertools import count

from factories.broker.stream_model import PublishAccepted, StreamModel
from factories.words import write_of
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Entry, Stream, Write, WriteAccepted, WriteRefused
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import AnyMessage

OTHERS = ""
"""A writer that is no allocator."""


class Bus:
    """The streams, their readers, and the judge, which observes everything at once."""

    def __init__(self, clockwork: VirtualClock) -> None:
        """Start without messages and readers."""
        self.clockwork = clockwork
        self.values = StreamModel(0.0)
        self.readers: dict[Stream, list[Reader]] = {Stream.BOOK: [], Stream.STATE: []}
        self.on_landed: list[Callable[[str, Entry], None]] = []
        """Called with each value that lands, and its writer."""
        self.on_refused: list[Callable[[str, Write], None]] = []
        self._numbers = count(1)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.clockwork.now

    def put(self, address: Address, message: AnyMessage, ttl_s: int | None = None) -> None:
        """Write to a subject with one writer, which always knows its guard."""
        name = f"other-{next(self._numbers)}"
        write = write_of(
            address, message, self.values.highest(address.guard, self.now), name, request=name, ttl_s=ttl_s
        )
        assert isinstance(self.write(OTHERS, write), WriteAccepted)

    def write(self, writer: str, write: Write) -> WriteAccepted | WriteRefused:
        """A write arrives, and this is the answer."""
        answer = self.values.publish(
            subject=write.subject,
            guard=write.guard,
            expected=write.expected,
            operation=write.operation,
            message=write.message,
            now=self.now,
            ttl_s=write.ttl_s,
        )
        if not isinstance(answer, PublishAccepted):
            for hears in self.on_refused:
                hears(writer, write)
            return WriteRefused(write.operation, answer.last)
        entry = Entry(write.subject, answer.sequence, write.operation, write.message)
        for hears in self.on_landed:
            hears(writer, entry)
        for reader in self.readers[write.stream]:
            reader.something_landed()
        return WriteAccepted(write.operation, answer.sequence)

    def everything(self, stream: Stream) -> list[Entry]:
        """The last values of a stream, oldest first."""
        return [value.entry for value in self.values.values_after(stream, 0, self.now)]


class Reader:
    """Reads one stream from its beginning: each time a while after something has landed there, all that is new."""

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        filters: tuple[str, ...],
        late_by: Callable[[], float],
        take: Callable[[Entry], None],
        read_all: Callable[[], None] = lambda: None,
    ) -> None:
        """It begins by itself; `read_all` is called each time when nothing new is left."""
        self._bus = bus
        self._late_by = late_by
        self._take = take
        self._read_all = read_all
        self._cursor = bus.values.cursor(stream, filters)
        self._is_due = False
        self.ended = False
        bus.readers[stream].append(self)
        self._stream = stream
        self.something_landed()

    def something_landed(self) -> None:
        """It is going to look, if it is not going to already."""
        if not self._is_due:
            self._is_due = True
            self._bus.clockwork.after(self._late_by(), self._read)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._bus.readers[self._stream] = [each for each in self._bus.readers[self._stream] if each is not self]

    def _read(self) -> None:
        self._is_due = False
        for value in [] if self.ended else self._cursor.read(self._bus.now):
            self._take(value.entry)
            if self.ended:
                return
        if not self.ended:
            self._read_all()
