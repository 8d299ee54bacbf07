"""The bus: the pure model of the streams behind a network that loses, delays and repeats; `on_landed` is the truth."""

from collections.abc import Callable
from typing import Literal

from factories.broker.stream_model import Cursor, PublishAccepted, PublishRefused, StreamModel
from simulation.world.lagging_server import Lagging
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock
from simulation.world.weather import ANSWER_TIMEOUT_S, Fate, Sky

from sluice.contracts.bus import events as bus
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.messages import AnyMessage

Answer = bus.WriteAccepted | bus.WriteRefused | bus.WriteUnknown
Reading = bus.ReadingStarted | bus.Observed | bus.ReadingCaughtUp
Cut = Literal["mute", "deaf"]
"""One way is cut: what it sends is lost, or what it is sent. Neither can read, because reading needs a question."""
_FATES: dict[Cut | None, Fate] = {"mute": "request lost", "deaf": "ack lost"}

BATCH = 50
RECONNECT_S = 0.3
BEHIND_MAX_S = 3.0
"""So long a reading waits for its server to have what the leader had, as `PENDING_MAX_S` of the shell."""


class Broker:
    """One server, and the way of every client to it."""

    def __init__(self, clockwork: VirtualClock, sky: Sky, trace: Trace) -> None:
        self.clockwork = clockwork
        self.sky = sky
        self.trace = trace
        self.values = StreamModel(0.0)
        self.up = True
        self.up_since = 0.0
        self.readers: dict[Reader, None] = {}
        self.on_landed: list[Callable[[bus.Write, int], None]] = []
        self.on_wiped: list[Callable[[], None]] = []
        self.wiped_life = ""
        """The incarnation of BOOK that ended with the latest wipe."""
        self.on_started: list[Callable[[], None]] = []
        """Called once, when it is up again and before any process can read."""
        self.fate_of: Callable[[str, bus.Write], Fate | None] = lambda _host, _write: None
        """What a schedule decides of single writes; of the others the sky decides."""
        self.cut: dict[str, Cut] = {}
        """Hosts of which one way to here is cut."""
        self.lagging: Lagging | None = None
        """A server that answers those who ask, and does not have the latest."""
        self._forgot = 0
        """How often a server ended that had not synced all it had acknowledged."""
        self.clock_off_s = 0.0
        """Error of the wall clock of the server that creates the streams next."""

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, host: str, write: bus.Write, answer: Callable[[Answer], None]) -> None:
        """Carry a write there and an answer back, as the weather allows. `answer` is called exactly once."""
        fate = self.fate_of(host, write) or _FATES.get(self.cut.get(host)) or self.sky.fate(self.clockwork.now)
        there, back, forgot = self.sky.latency(), self.sky.latency(), self._forgot
        unknown = bus.WriteUnknown(write.operation)
        match fate:
            case "request lost":
                self.clockwork.after(ANSWER_TIMEOUT_S + back, lambda: answer(unknown))
            case "ack lost":
                self.clockwork.after(there, lambda: self._land(host, write, "ack lost"))
                self.clockwork.after(ANSWER_TIMEOUT_S + back, lambda: answer(unknown))
            case "late":
                self.clockwork.after(ANSWER_TIMEOUT_S + back, lambda: answer(unknown))
                late_s = ANSWER_TIMEOUT_S + self.sky.long()
                self.clockwork.after(late_s, lambda: self._land_belated(host, write, "late", forgot))
            case _:
                self.clockwork.after(there, lambda: self._land_and_answer(host, write, answer, back))
        if fate == "twice":
            again_s = there + self.sky.long()
            self.clockwork.after(again_s, lambda: self._land_belated(host, write, "again", forgot))

    def put(self, host: str, write: bus.Write) -> Answer:
        """A write lands at once: it was there before anything began."""
        return self._land(host, write, "")

    def _land_and_answer(self, host: str, write: bus.Write, answer: Callable[[Answer], None], back: float) -> None:
        result = self._land(host, write, "")
        if isinstance(result, bus.WriteUnknown):
            back += ANSWER_TIMEOUT_S
        self.clockwork.after(back, lambda: answer(result))

    def _land_belated(self, host: str, write: bus.Write, how: str, forgot: int) -> None:
        """A write comes long after it was sent, or once more.

        Not to a server that forgets: it is alone, so with its end all is lost that was on its way to it, as no client
        of ours keeps anything for the next connection. In a cluster, which forgets nothing, another server may have it.
        """
        if forgot == self._forgot:
            self._land(host, write, how)

    def _land(self, host: str, write: bus.Write, how: str) -> Answer:
        if not self.up:
            return bus.WriteUnknown(write.operation)
        outcome = self.values.publish(
            subject=write.subject,
            guard=write.guard,
            expected=write.expected,
            operation=write.operation,
            message=write.message,
            now=self.clockwork.now,
            ttl_s=write.ttl_s,
            request=write.request,
        )
        match outcome:
            case PublishAccepted():
                if self.trace.keeps:
                    self.trace.tell("broker", f"landed {how}", write.subject, f"#{outcome.sequence % 10**7} by {host}")
                for landed in self.on_landed:
                    landed(write, outcome.sequence)
                self.poke(write.stream)
                return bus.WriteAccepted(write.operation, outcome.sequence)
            case PublishRefused():
                if self.trace.keeps:
                    last = f"last #{outcome.last % 10**7}, for {host}"
                    self.trace.tell("broker", f"refused {how}", write.subject, last)
                return bus.WriteRefused(write.operation, outcome.last)
            case _:
                return bus.WriteUnknown(write.operation)

    def last(self, subject: str, answer: Callable[[bus.Entry | None], None], host: str = "") -> None:
        """Read one last value for a host; asked again until there is an answer, as the shell does."""
        if not self.up or host in self.cut:
            self.clockwork.after(RECONNECT_S, lambda: self.last(subject, answer, host))
            return
        back = self.sky.latency()

        def read() -> None:
            if self.lagging is not None and self.lagging.answers():
                entry = self.lagging.last(subject)
            else:
                entry = self.values.last(subject, self.clockwork.now)
            self.clockwork.after(back, lambda: answer(entry))

        self.clockwork.after(self.sky.latency(), read)

    # -- what happens to it ---------------------------------------------------------------------------------------

    def poke(self, stream: bus.Stream) -> None:
        """There is something new for the readers of a stream."""
        for reader in self.readers:
            if reader.stream is stream:
                reader.poke()

    def stop(self) -> None:
        self.up = False
        self.trace.tell("broker", "STOPPED")

    def start(self, *, forgets_state: int = 0) -> None:
        """The server is back; the latest writes of STATE may be lost (it syncs later), those of BOOK never."""
        self.up, self.up_since = True, self.clockwork.now
        lost = self.values.lose_latest(bus.Stream.STATE, forgets_state) if self.values.has(bus.Stream.STATE) else 0
        self._forgot += lost > 0
        self.trace.tell("broker", "STARTED", "", f"{lost} values of STATE lost")
        for started in self.on_started:
            started()
        self.on_started.clear()
        for reader in self.readers:
            reader.start()

    def request_words(self) -> dict[str, AnyMessage]:
        said = self.values.snapshot(bus.Stream.STATE, ("sluice.request.>",), self.clockwork.now)
        return {entry.subject.rpartition(".")[2]: entry.message for entry in said}

    def wipe(self, *, but: bus.Stream | None = None) -> None:
        """Everything it stored is lost, streams and durables included; all `but` one stream, where its files remain."""
        self.wiped_life = self.values.incarnation(bus.Stream.BOOK) or self.wiped_life
        self.values.wipe(but=but)
        self.trace.tell("broker", "WIPED")
        for wiped in self.on_wiped:
            wiped()

    def ensure(self) -> None:
        self.values.ensure(self.clockwork.now, self.clock_off_s)
        self.up_since = self.clockwork.now
        self.trace.tell("broker", "streams ensured", "", str(self.values.incarnation(bus.Stream.BOOK)))


class Reader:
    """One reading of one stream by one host, in stream order, restarted whenever needed."""

    def __init__(
        self,
        broker: Broker,
        stream: bus.Stream,
        filters: tuple[str, ...],
        deliver: Callable[[Reading], None],
        *,
        agent: NodeName | None = None,
    ) -> None:
        """With `agent` it reads by that node's durable, which has to exist."""
        self.stream = stream
        self.host = ""
        """The readers."""
        self._broker = broker
        self._filters = filters
        self._deliver = deliver
        self._agent = agent
        self._turn = 0
        self._told_missing = False
        self._cursor: Cursor | None = None
        self._caught_up = False
        self._ends_at = 0
        """The last sequence of the stream's leader when the reading began; unknown (0) to an agent."""
        self._waits = False
        self._asked = False
        self._arrives = 0.0
        broker.readers[self] = None

    def stop(self) -> None:
        self._turn += 1
        self._cursor = None
        self._broker.readers.pop(self, None)

    def start(self, delay_s: float = 0.0) -> None:
        """Read again; what is still on its way from before is dropped."""
        self._turn += 1
        self._cursor = None
        self._told_missing = False
        turn = self._turn
        self._broker.clockwork.after(delay_s + self._broker.sky.latency(), lambda: self._connect(turn))

    def stand_still(self) -> Callable[[], None]:
        """What is new does not come through, until the result is called. Only while it waits for something new."""
        assert not self._asked
        self._asked = True

        def go_on() -> None:
            self._asked = False
            self.poke()

        return go_on

    def poke(self) -> None:
        if self._cursor is not None and not self._asked:
            self._asked = True
            turn, sky, clockwork = self._turn, self._broker.sky, self._broker.clockwork
            delay = sky.latency() + (sky.long() if sky.chance("stall", clockwork.now) else 0.0)
            clockwork.after(delay, lambda: self._poll(turn))

    def _connect(self, turn: int) -> None:
        if turn != self._turn:
            return
        broker = self._broker
        if self.host in broker.cut:
            broker.clockwork.after(RECONNECT_S + broker.sky.latency(), lambda: self._connect(turn))
            return
        incarnation = broker.values.incarnation(self.stream)
        durable = self._agent is None or broker.values.has_agent(self._agent)
        if broker.up and not durable and not self._told_missing:
            self._told_missing = True  # as the bus port promises: once, before it waits for the durable
            self._send(turn, bus.ReadingStarted(self.stream, Incarnation("")))
        if not broker.up or incarnation is None or not durable:
            broker.clockwork.after(RECONNECT_S + broker.sky.latency(), lambda: self._connect(turn))
            return
        self._told_missing = False
        self._send(turn, bus.ReadingStarted(self.stream, incarnation))

        def begin() -> None:
            if turn != self._turn:
                return
            if not broker.up or broker.values.incarnation(self.stream) != incarnation:
                self.start(RECONNECT_S)
                return
            lagging = broker.lagging
            if lagging is not None and lagging.answers():
                self._cursor = lagging.cursor(broker.values, self.stream, self._filters)
            else:
                self._cursor = broker.values.cursor(self.stream, self._filters)
            self._caught_up = self._waits = False
            self._ends_at = broker.values.ends_at(self.stream) if self._agent is None else 0
            self._asked = True
            self._poll(turn)

        broker.clockwork.after(broker.sky.latency(), begin)

    def _poll(self, turn: int) -> None:
        cursor, broker = self._cursor, self._broker
        if turn != self._turn or cursor is None:
            return
        if self.host in broker.cut:
            broker.clockwork.after(RECONNECT_S, lambda: self._poll(turn))
            return
        self._asked = False
        if cursor.lost or not broker.up or broker.sky.chance("hasty_end", broker.clockwork.now):
            self.start(RECONNECT_S)
            return
        values = cursor.read(broker.clockwork.now, BATCH)
        for value in values:
            self._send(turn, bus.Observed(self.stream, value.entry))
            if self._agent is not None and broker.sky.chance("redelivered", broker.clockwork.now):
                again = bus.Observed(self.stream, value.entry)
                broker.clockwork.after(broker.sky.long() * 2, lambda again=again: self._send(turn, again))  # type: ignore[misc]
        if len(values) == BATCH:
            self.poke()
        elif not self._caught_up and self._is_complete(cursor):
            self._caught_up = True
            self._send(turn, bus.ReadingCaughtUp(self.stream))
        elif not self._caught_up and not self._waits:
            self._waits = True
            broker.clockwork.after(BEHIND_MAX_S, lambda: self._try_another(turn))

    def _is_complete(self, cursor: Cursor) -> bool:
        """Whether the server that is read has all that the leader had when the reading began (ADR 0070)."""
        return cursor.has_upto(self._ends_at)

    def _try_another(self, turn: int) -> None:
        if turn == self._turn and not self._caught_up:
            self.start(RECONNECT_S)

    def _send(self, turn: int, event: Reading) -> None:
        """What is read arrives in order, at its time, unless the reading was restarted meanwhile."""
        clockwork = self._broker.clockwork
        self._arrives = max(self._arrives + 1e-6, clockwork.now + self._broker.sky.latency())

        def arrive() -> None:
            if turn == self._turn:
                self._deliver(event)

        clockwork.at(self._arrives, arrive)
