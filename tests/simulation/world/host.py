"""One process: a core with its shell's duties; it dies between instructions, pauses, and restarts with its disk."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from simulation.world.broker import Answer, Broker, Reader
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import LastRead, ReadAgain, ReadingStarted, ReadLast, Stream, Ticked, Write
from sluice.contracts.ids import NodeName, RunId

TICK_S = 0.5
ARMED_S = 0.5
"""A crash waits so long for instructions to fall between."""


class Core(Protocol):
    """What all cores are."""

    def handle(self, event: Any, now: float) -> Sequence[object]: ...


class Host:
    """A process that runs, dies and runs again. `life` counts; what belongs to an earlier run is dropped."""

    kind = ""

    def __init__(self, name: str, clockwork: VirtualClock, broker: Broker, dice: Random, trace: Trace) -> None:
        """Nothing runs before `start`."""
        self.name = name
        self.clockwork = clockwork
        self.broker = broker
        self.dice = dice
        self.trace = trace
        self.life = 0
        self.run = self._run_id()
        """The id of this run."""
        self.reads = ""
        """The incarnation of BOOK that it reads, as far as it knows."""
        self.alive = False
        self.on_started: list[Callable[[], None]] = []
        """Called once, when it begins its next run."""
        self.paused = False
        self.core: Core | None = None
        self.readers: list[Reader] = []
        self.on_instruction: list[Callable[[Host, object], None]] = []
        self.on_event: list[Callable[[object], None]] = []
        self.handled = 0
        self.clock_rate = 1.0
        """How fast its clock goes. Where it began is another in each run."""
        self._able_since = 0.0
        """Since when this run has not stood still."""
        self._backlog: deque[object] = deque()
        self._offset = 0.0
        self._armed: Callable[[], None] | None = None

    # -- for each kind of host ------------------------------------------------------------------------------------

    def make_core(self, run: RunId) -> Core:
        raise NotImplementedError

    def readings(self) -> list[tuple[Stream, tuple[str, ...], NodeName | None]]:
        """What this process reads: stream, filters, and the node if it reads by an agent's durable."""
        raise NotImplementedError

    def begin(self) -> None:
        """What the shell passes to the core first."""

    def execute(self, instruction: object) -> None:
        """Carry out an instruction of the core's own."""
        raise NotImplementedError

    def end(self) -> None:
        """The process has just died: what it had asked the kernel to do may still be done."""

    # -- living and dying -----------------------------------------------------------------------------------------

    @property
    def able_for(self) -> float:
        """For how many seconds it has been able to publish; 0 when it is not."""
        broker = self.broker
        if not self.alive or self.paused or not broker.up or self.name in broker.cut:
            return 0.0
        return self.clockwork.now - max(self._able_since, broker.up_since)

    def start(self) -> None:
        self.life += 1
        self.run = self._run_id()
        self.reads = ""
        self._able_since = self.clockwork.now
        self.alive, self.paused = True, False
        self._backlog.clear()
        self._offset = self.dice.uniform(0, 1e6)
        self.trace.tell(self.name, "STARTED", "", self.run)
        self.core = self.make_core(self.run)
        waited, self.on_started = self.on_started, []
        for tell in waited:
            tell()
        self.begin()
        self.readers = [
            Reader(self.broker, stream, filters, self._deliverer(), agent=agent)
            for stream, filters, agent in self.readings()
        ]
        for reader in self.readers:
            reader.host = self.name
            reader.start(self.dice.uniform(0, 0.05))
        self._tick(self.life)

    def crash(self) -> None:
        """Die between two instructions: soon, when there are some to die between."""
        if not self.alive:
            return
        life = self.life
        self._armed = self._die

        def at_last() -> None:
            if life == self.life and self._armed is not None:
                self._die()

        self.clockwork.after(ARMED_S, at_last)

    def kill(self) -> None:
        if self.alive:
            self._die()

    def pause(self) -> None:
        """Stand still; everything for this process waits."""
        self.paused = self.alive
        self.trace.tell(self.name, "PAUSED")

    def resume(self) -> None:
        """Go on, with everything that has come meanwhile."""
        if not self.paused:
            return
        self.paused = False
        self._able_since = self.clockwork.now
        self.trace.tell(self.name, "RESUMED", "", f"{len(self._backlog)} events waiting")
        while self._backlog and self.alive and not self.paused:
            self._handle(self._backlog.popleft())

    def read_anew(self) -> None:
        """The connection was lost and is back."""
        for reader in self.readers:
            reader.start(self.dice.uniform(0, 1.0))

    def is_heard_again(self) -> None:
        """The network is whole again; sometimes the connection had been given up meanwhile."""
        self._able_since = self.clockwork.now
        if self.dice.random() < 0.5:
            self.read_anew()

    def _run_id(self) -> RunId:
        return RunId(f"{self.name.replace('.', '-')}-r{self.life}")

    def _die(self) -> None:
        self.alive, self.paused, self._armed = False, False, None
        self.core = None
        self._backlog.clear()
        for reader in self.readers:
            reader.stop()
        self.readers = []
        self.trace.tell(self.name, "DIED")
        self.end()

    # -- the loop -------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do something in this run, if it lasts."""
        life = self.life

        def step() -> None:
            if self.alive and life == self.life:
                what()

        self.clockwork.after(delay_s, step)

    def offer(self, event: object) -> None:
        """Give the core an event, now or when this process goes on."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append(event)
        else:
            self._handle(event)

    def _deliverer(self) -> Callable[[object], None]:
        life = self.life

        def deliver(event: object) -> None:
            if life == self.life:
                self.offer(event)

        return deliver

    def _tick(self, life: int) -> None:
        if not self.alive or life != self.life:
            return
        if not self.paused:
            self._handle(Ticked())
        self.clockwork.after(TICK_S, lambda: self._tick(life))

    def _handle(self, event: object) -> None:
        self.handled += 1
        trace = self.trace
        if trace.keeps and not isinstance(event, Ticked):
            trace.tell(self.name, f"> {type(event).__name__}", _subject(event), event)
        if isinstance(event, ReadingStarted) and event.stream is Stream.BOOK:
            self.reads = event.incarnation
        for heard in self.on_event:
            heard(event)
        instructions = self.core.handle(event, self.clockwork.now * self.clock_rate + self._offset)
        die_after = self.dice.randrange(len(instructions) + 1) if self._armed is not None and instructions else None
        for number, instruction in enumerate(instructions):
            if die_after == number:
                break
            if trace.keeps:
                trace.tell(self.name, f"< {type(instruction).__name__}", _subject(instruction), instruction)
            for hear in self.on_instruction:
                hear(self, instruction)
            self._carry_out(instruction)
        if die_after is not None:
            self._die()

    def _carry_out(self, instruction: object) -> None:
        match instruction:
            case Write():
                life = self.life

                def answer(result: Answer) -> None:
                    if life == self.life:
                        self.offer(result)

                self.broker.write(self.name, instruction, answer)
            case ReadAgain():
                for reader in self.readers:
                    if reader.stream is instruction.stream:
                        reader.start(self.dice.uniform(0, 0.1))
            case ReadLast():
                life, subject = self.life, instruction.subject

                def tell(entry: Any) -> None:
                    if life == self.life:
                        self.offer(LastRead(subject, entry))

                self.broker.last(subject, tell, self.name)
            case _:
                self.execute(instruction)


def _subject(thing: object) -> str:
    subject = getattr(thing, "subject", "") or getattr(getattr(thing, "entry", None), "subject", "")
    return str(subject)
