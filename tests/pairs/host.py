"""A real allocator core with its shell's duties: own delays and clock, late writes, lost answers, deaths."""

from collections.abc import Callable
from random import Random

from pairs.bus import Bus, Reader

from sluice.contracts.bus.events import (
    Observed,
    ReadAgain,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Ticked,
    Write,
    WriteUnknown,
)
from sluice.contracts.ids import RunId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import AgentEnsured, Continue, EnsureAgent, Event, LeaseChanged

LATENCIES_S = (0.002, 0.01, 0.05, 0.3)
TICK_S = 0.5
UNKNOWN_AFTER_S = 1.0
GO_ON_S = 0.001
CLOCKS_APART_S = 1000.0


class Host:
    """One allocator, and its processes one after the other."""

    def __init__(self, bus: Bus, name: str, rules: SchedulerConfig, dice: Random, lost: float) -> None:
        """`lost`: the part of its writes that are not answered; half of those do not arrive, either."""
        self.bus = bus
        self.name = name
        self.lost = lost
        self.core: Allocator
        self.is_alive = False
        self.gone_on = 0
        """How often it went on with what was unfinished."""
        self._rules = rules
        self._dice = dice
        self._latency_s = dice.choice(LATENCIES_S)
        self._held = True
        self._life = 0
        self._stalled_until = dict.fromkeys(Stream, 0.0)
        self._readers: dict[Stream, Reader] = {}
        self._readings = dict.fromkeys(Stream, 0)
        self._goes_on = False

    def start(self) -> None:
        if self.is_alive:
            return
        self.is_alive = True
        self._life += 1
        self._goes_on = False
        self.core = Allocator(RunId(f"{self.name}r{self._life}"), self._rules)
        self.handle(LeaseChanged(held=self._held))
        for stream in (Stream.BOOK, Stream.STATE):
            self.read_anew(stream)
        self._tick()

    def crash(self) -> None:
        """Nothing is published any more, and no answer read; what is on its way arrives."""
        self.is_alive = False
        self._life += 1
        for reader in self._readers.values():
            reader.end()

    def set_lease(self, *, held: bool) -> None:
        self._held = held
        if self.is_alive:
            self.handle(LeaseChanged(held=held))

    def stall(self, streams: tuple[Stream, ...], seconds: float) -> None:
        """It reads nothing of these streams for a while."""
        self._stalled_until |= dict.fromkeys(streams, self.bus.now + seconds)

    def read_anew(self, stream: Stream) -> None:
        """A reading from the beginning; one that is under way is over."""
        if stream in self._readers:
            self._readers[stream].end()
        self._readings[stream] += 1
        number = self._readings[stream]
        self._later(self._delay(), lambda: self._begin_reading(stream, number))

    def handle(self, event: Event) -> None:
        """The core observes an event, and what it wants is carried out."""
        for instruction in self.core.handle(event, self.bus.now + self._life * CLOCKS_APART_S):
            match instruction:
                case Write():
                    self._write(instruction)
                case ReadAgain():
                    self.read_anew(instruction.stream)
                case EnsureAgent():
                    self._later(GO_ON_S, lambda node=instruction.node: self.handle(AgentEnsured(node)))
                case _:
                    pass
        if self.core.unfinished and not self._goes_on:
            self._goes_on = True
            self._later(GO_ON_S, self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.gone_on += 1
        self.handle(Continue())

    def _tick(self) -> None:
        self.handle(Ticked())
        self._later(TICK_S, self._tick)

    def _begin_reading(self, stream: Stream, number: int) -> None:
        if number != self._readings[stream]:
            return
        self.handle(ReadingStarted(stream, self.bus.values.incarnation(stream)))
        is_first = [True]

        def read_all() -> None:
            if is_first.pop() if is_first else False:
                self.handle(ReadingCaughtUp(stream))

        def late_by() -> float:
            return max(self._delay(), self._stalled_until[stream] - self.bus.now)

        def take(entry) -> None:
            self.handle(Observed(stream, entry))

        self._readers[stream] = Reader(self.bus, stream, (), late_by, take, read_all)

    def _write(self, write: Write) -> None:
        there, back, fate = self._delay(), self._delay(), self._dice.random()
        if fate < self.lost:
            self._later(UNKNOWN_AFTER_S, lambda: self.handle(WriteUnknown(write.operation)))
        if fate < self.lost / 2:
            return

        def arrives() -> None:
            answer = self.bus.write(self.name, write)
            if fate >= self.lost and self._life == life:
                self._later(back, lambda: self.handle(answer))

        life = self._life
        self.bus.clockwork.after(there, arrives)

    def _later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do something, unless this process is gone by then."""
        life = self._life
        self.bus.clockwork.after(delay_s, lambda: do() if self._life == life else None)

    def _delay(self) -> float:
        return self._dice.uniform(0.2, 1.5) * self._latency_s
