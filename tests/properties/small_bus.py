"""A bus in one dictionary, and allocators that read and write it a step at a time.

It keeps last values, checks guards and hands out sequences, and nothing else: what a step is, and when it is taken, is
for the test that drives it. Nothing is lost on the way; what is slow is slow because no test takes the step.
"""

from collections import deque
from collections.abc import Callable
from itertools import count

from factories.scheduling.allocator import INCARNATION

from sluice.contracts.bus.events import (
    Entry,
    Observed,
    ReadAgain,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Write,
    WriteAccepted,
    WriteRefused,
    stream_of,
)
from sluice.contracts.bus.subjects import Address, parse
from sluice.contracts.ids import OperationId, RunId
from sluice.contracts.messages import AnyMessage
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import AgentEnsured, Continue, EnsureAgent, Event, Instruction, LeaseChanged

READ = (Stream.BOOK, Stream.STATE)
STEPS_MAX = 20_000
"""More of them for one event mean that two answer each other for ever."""


class SmallBus:
    """The last value of every subject."""

    def __init__(self) -> None:
        self.last: dict[str, Entry] = {}
        self.readers: list[Process] = []
        self.on_landed: list[Callable[[Entry, RunId | None], None]] = []
        """Called with each value that lands, and whose it is; None: not an allocator's."""
        self._guards: dict[str, int] = {}
        self._sequences = count(1001)

    def put(self, address: Address, message: AnyMessage) -> Entry:
        """Publish a message of another service than an allocator."""
        return self._land(address, message, OperationId(f"other-{len(self.last)}-{next(self._sequences)}"), None)

    def write(self, write: Write, run: RunId) -> WriteAccepted | WriteRefused:
        """An allocator's write, and the server's answer."""
        address = parse(write.subject)
        assert write.guard == address.guard
        newest = self._guards.get(write.guard, 0)
        if newest != write.expected:
            return WriteRefused(write.operation, newest)
        return WriteAccepted(write.operation, self._land(address, write.message, write.operation, run).sequence)

    def whole(self, stream: Stream) -> list[Event]:
        """What one stream holds, and that this was all."""
        entries = [each for each in self.last.values() if stream_of(parse(each.subject).kind) is stream]
        shown = [Observed(stream, each) for each in sorted(entries, key=lambda each: each.sequence)]
        return [*shown, ReadingCaughtUp(stream)]

    def _land(self, address: Address, message: AnyMessage, operation: OperationId, run: RunId | None) -> Entry:
        entry = Entry(address.subject, next(self._sequences), operation, message)
        self.last[address.subject] = entry
        self._guards[address.guard] = entry.sequence
        for reader in self.readers:
            reader.unread[stream_of(address.kind)].append(Observed(stream_of(address.kind), entry))
        for hears in self.on_landed:
            hears(entry, run)
        return entry


class Process:
    """One allocator, what it has not read yet of each stream, and what it has not sent yet."""

    def __init__(self, bus: SmallBus, run: str, rules: SchedulerConfig, now: float) -> None:
        """It works, and has everything on the bus still to read."""
        self.run = RunId(run)
        self.allocator = Allocator(self.run, rules)
        self.bus = bus
        self.unread: dict[Stream, deque[Event]] = {stream: deque() for stream in READ}
        self.unsent: deque[Write] = deque()
        self.said: list[Instruction] = []
        """What is neither read nor written."""
        self.now = now
        self.handle(LeaseChanged(held=True))
        bus.readers.append(self)
        for stream in READ:
            self._begin_reading(stream)

    def handle(self, event: Event) -> None:
        """One event; what it wants is to be sent."""
        for instruction in self.allocator.handle(event, self.now):
            match instruction:
                case Write():
                    self.unsent.append(instruction)
                case EnsureAgent():
                    self.handle(AgentEnsured(instruction.node))
                case ReadAgain():
                    self._begin_reading(instruction.stream)
                case _:
                    self.said.append(instruction)

    def send(self) -> bool:
        """The oldest write reaches the server, and is answered. False when there is none."""
        if self.unsent:
            self.handle(self.bus.write(self.unsent.popleft(), self.run))
            return True
        return False

    def read(self, stream: Stream) -> bool:
        """One value of a stream. False when there is none."""
        if self.unread[stream]:
            self.handle(self.unread[stream].popleft())
            return True
        return False

    def go_on(self) -> bool:
        """One more look at what is still to be tried. False when nothing is."""
        if self.allocator.unfinished:
            self.handle(Continue())
            return True
        return False

    def die(self) -> None:
        """What was not sent is lost."""
        self.bus.readers.remove(self)

    def _begin_reading(self, stream: Stream) -> None:
        """What is there is asked for when the core knows that it is being read (PROTOCOL §3)."""
        self.handle(ReadingStarted(stream, INCARNATION))
        self.unread[stream] = deque(self.bus.whole(stream))


def until_calm(processes: list[Process]) -> None:
    """All processes have read, sent and tried all that there is."""
    for _ in range(STEPS_MAX):
        went_on = [each.send() or each.read(READ[0]) or each.read(READ[1]) or each.go_on() for each in processes]
        if not any(went_on):
            return
    unsent = [[write.subject for write in process.unsent] for process in processes]
    raise AssertionError(f"there is no end to it: {unsent}")
