"""Limits that a file says: what is said on the bus, what is taken back, and what is left alone."""

import itertools
from dataclasses import dataclass, field

import pytest
from factories.words import write_of

from sluice.contracts.bus import events as e
from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, NodeName, OperationId, RunId, SourceName
from sluice.contracts.messages import Amounts, AnyMessage, Cordoned, QuotaSet, QuotaUnset, Uncordoned
from sluice_pod_watcher.core.folder.events import WriteLogLine
from sluice_pod_watcher.core.limits_source import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Event,
    Instruction,
    LimitsPublished,
    LimitsRead,
    LimitsSource,
    LimitsUnreadable,
)

CLUSTER = SourceName("cluster")
FOUR = "[namespaces.lab]\ngpus = 4\n"
FIVE = "[namespaces.lab]\ngpus = 5\n"
CORDON = '[nodes."gpu-1.example"]\ncordon = true\nwhy = "its fan"\n'
BAD = "[namespaces.lab]\ngpus = -1\n"
LAB = subjects.quota("lab")
NODE = subjects.cordon(NodeName("gpu-1.example"))
TTL_S = 60


def lab(gpus: int, source: str = CLUSTER) -> QuotaSet:
    return QuotaSet(namespace="lab", total=Amounts(gpus=gpus), source=SourceName(source))


UNSET = QuotaUnset(namespace="lab", source=CLUSTER)
CORDONED = Cordoned(node=NodeName("gpu-1.example"), why="its fan", source=CLUSTER)
UNCORDONED = Uncordoned(node=NodeName("gpu-1.example"), source=CLUSTER)


def write(number: int, address: Address, message: AnyMessage, expected: int = 0, ttl_s: int | None = None) -> e.Write:
    return write_of(address, message, expected, f"w-{number}", ttl_s=ttl_s)


@dataclass
class Bus:
    """Last values, guarded as a server guards them. Every source observes what lands, sooner or later."""

    values: dict[str, e.Entry] = field(default_factory=dict)
    sequence: itertools.count = field(default_factory=lambda: itertools.count(1001))
    incarnation: int = 1000
    landed: list[e.Write] = field(default_factory=list)

    def put(self, address: Address, message: AnyMessage, operation: str = "console-1") -> e.Entry:
        entry = e.Entry(address.subject, next(self.sequence), OperationId(operation), message)
        self.values[address.subject] = entry
        return entry

    def take(self, wanted: e.Write) -> e.WriteAccepted | e.WriteRefused:
        last = self.values.get(wanted.subject)
        if (last.sequence if last is not None else 0) != wanted.expected:
            return e.WriteRefused(wanted.operation, last.sequence if last is not None else 0)
        self.landed.append(wanted)
        address = subjects.parse(wanted.subject)
        return e.WriteAccepted(wanted.operation, self.put(address, wanted.message, wanted.operation).sequence)

    def wipe(self) -> None:
        self.values.clear()
        self.incarnation += 1000
        self.sequence = itertools.count(self.incarnation * 1000)

    def said(self) -> dict[str, AnyMessage]:
        return {subject: entry.message for subject, entry in self.values.items() if entry.message is not None}


def said_in(bus: Bus) -> LimitsPublished:
    return LimitsPublished(Incarnation(str(bus.incarnation)))


@pytest.fixture
def bus() -> Bus:
    return Bus()


@dataclass
class Watcher:
    """One process that says a file's limits; the test is its file, and carries out what it says."""

    bus: Bus
    run: str = "w"
    source: SourceName = CLUSTER
    now: float = 100.0
    told: list[str] = field(default_factory=list)
    said: int = 0
    """How often it has published that all is said."""
    core: LimitsSource = field(init=False)

    def __post_init__(self) -> None:
        self.core = LimitsSource(RunId(self.run), self.source, origin="limits.toml", closing_ttl_s=TTL_S)

    def step(self, event: Event) -> list[Instruction]:
        return self.core.handle(event, self.now)

    def do(self, event: Event) -> None:
        waiting = self.step(event)
        while waiting:
            match waiting.pop(0):
                case WriteLogLine() as tell:
                    self.told.append(tell.sentence)
                case e.Write() as wanted:
                    answer = self.bus.take(wanted)
                    waiting += self.step(answer)
                    if isinstance(answer, e.WriteAccepted):
                        waiting += self.step(e.Observed(e.Stream.BOOK, self.bus.values[wanted.subject]))
                case LimitsPublished() as limits:
                    assert limits == said_in(self.bus)
                    self.said += 1
                case other:
                    raise AssertionError(other)

    def reading(self) -> list[Instruction]:
        """Everything is read (again); returns what follows at its end."""
        for event in self.everything():
            assert self.step(event) == []  # nothing is decided of half of what there is
        return self.step(e.ReadingCaughtUp(e.Stream.BOOK))

    def read(self) -> None:
        """Everything is read (again), and what follows is done."""
        for event in (*self.everything(), e.ReadingCaughtUp(e.Stream.BOOK)):
            self.do(event)

    def everything(self) -> list[Event]:
        began = e.ReadingStarted(e.Stream.BOOK, Incarnation(str(self.bus.incarnation)))
        return [began, *(e.Observed(e.Stream.BOOK, entry) for entry in self.bus.values.values())]

    def hear(self, *addresses: Address) -> None:
        for address in addresses:
            self.do(e.Observed(e.Stream.BOOK, self.bus.values[address.subject]))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(e.Ticked())


def started(bus: Bus, text: str, run: str = "w", source: SourceName = CLUSTER) -> Watcher:
    watcher = Watcher(bus, run, source)
    watcher.do(LimitsRead(text))
    watcher.read()
    return watcher


def test_nothing_is_said_before_the_file_was_read_well_once(bus):
    bus.put(LAB, lab(4), "before-1")
    watcher = Watcher(bus)
    assert watcher.reading() == []
    assert watcher.step(LimitsUnreadable("there is no limits file x", missing=True)) == [
        WriteLogLine("info", "there is no limits file x; what is on the bus stays in force"),
        said_in(bus),
    ]
    assert watcher.step(LimitsUnreadable("the limits file x cannot be read: no UTF-8")) == [
        WriteLogLine("warning", "the limits file x cannot be read: no UTF-8; what is on the bus stays in force")
    ]
    assert watcher.step(LimitsRead(BAD)) == [
        WriteLogLine(
            "warning",
            "limits.toml: namespaces.lab.gpus = -1: a whole number from 0 to 999999999, or unlimited; "
            "what is on the bus stays in force",
        )
    ]
    assert watcher.step(e.Ticked()) == []
    assert watcher.step(LimitsRead(FIVE)) == [
        WriteLogLine("info", "limits.toml names 1 namespaces and 0 nodes"),
        write(1, LAB, lab(5), expected=1001),
    ]


def test_that_all_is_said_is_told_once_and_not_before_it_is_on_the_bus(bus):
    """Pods that are asked for before are granted beyond a limit, and a limit takes nothing away."""
    watcher = Watcher(bus)
    watcher.do(LimitsRead(FOUR + CORDON))
    first, second = watcher.reading()
    assert isinstance(first, e.Write)
    assert isinstance(second, e.Write)
    assert watcher.step(bus.take(second)) == []
    assert watcher.step(e.WriteUnknown(first.operation))[1:] == []
    assert watcher.step(bus.take(first)) == [said_in(bus)]
    watcher.do(LimitsRead(FIVE))
    watcher.read()
    assert watcher.said == 0


def test_a_reading_of_another_life_is_awaited_where_there_is_no_file(bus):
    """The pods of a fleet without limits would wait for them after each wipe."""
    watcher = Watcher(bus)
    watcher.do(LimitsUnreadable("there is no limits file x", missing=True))
    assert watcher.said == 0
    assert watcher.reading() == [said_in(bus)]
    bus.wipe()
    assert watcher.reading() == [said_in(bus)]


@pytest.mark.parametrize("bad", [LimitsRead(BAD), LimitsUnreadable("it is away", missing=True)])
def test_a_bad_edit_and_a_missing_file_leave_in_force_what_was_said_before(bus, bad):
    """A slip of the pen, or a ConfigMap that was deleted, would lift every limit."""
    watcher = started(bus, FOUR)
    (told,) = watcher.step(bad)
    assert (type(told), told.level) == (WriteLogLine, "warning")
    assert told.sentence.endswith("; what it said before stays in force")
    bus.wipe()
    assert watcher.reading() == [write(2, LAB, lab(4))]


@pytest.mark.parametrize(
    ("written", "doubts"),
    [
        ("pod-memory = 160", ["namespaces.lab.pod-memory = 160: 160 without a unit is 160 MiB; did you mean 160Gi?"]),
        ("memory = '160'", ['namespaces.lab.memory = "160": 160 without a unit is 160 MiB; did you mean 160Gi?']),
        ("memory = '160Mi'\npod-memory = 8000", []),
    ],
)
def test_memory_without_a_unit_that_is_hardly_meant_so_is_doubted(bus, written, doubts):
    """A namespace with 160 GiB in mind would get 160 MiB, and no pod of it would start."""
    step = started(bus, FOUR).step(LimitsRead(f"[namespaces.lab]\n{written}\n"))
    told = [each.sentence for each in step if isinstance(each, WriteLogLine) and each.level == "warning"]
    assert told == [f"limits.toml: {each} (write 160Mi to confirm)" for each in doubts]


def test_what_a_person_said_of_others_is_left_alone(bus):
    bus.put(subjects.quota("den"), QuotaSet(namespace="den", total=Amounts(gpus=1)))
    bus.put(NODE, Cordoned(node=NodeName("gpu-1.example")))
    watcher = started(bus, FOUR)
    bus.put(subjects.quota("den"), QuotaSet(namespace="den", total=Amounts(gpus=2)))
    assert watcher.step(e.Observed(e.Stream.BOOK, bus.values["sluice.quota.den"])) == []
    assert watcher.step(LimitsRead("")) == [
        WriteLogLine("info", "limits.toml names 0 namespaces and 0 nodes"),
        WriteLogLine("info", "namespace lab no longer has limits: limits.toml does not name it"),
        write(2, LAB, UNSET, expected=1003, ttl_s=TTL_S),
    ]


def test_what_a_person_says_of_what_the_file_names_does_not_last(bus):
    """Two owners of one limit: which one holds after the next wipe would be unknown."""
    watcher = started(bus, FOUR)
    bus.put(LAB, QuotaSet(namespace="lab", total=Amounts(gpus=9)))
    assert watcher.step(e.Observed(e.Stream.BOOK, bus.values[LAB.subject])) == [
        WriteLogLine("info", "namespace lab: limits.toml replaces what an operator set"),
        write(2, LAB, lab(4), expected=1002),
    ]


def test_two_with_the_same_file_write_it_once(bus):
    """Two pod-watchers would write over each other for ever."""
    one = started(bus, FOUR + CORDON, "one")
    two = started(bus, FOUR + CORDON, "two")
    for each in (one, two):
        each.hear(LAB, NODE)
    for each in (one, two, one):
        each.do(LimitsRead(FIVE))
        for other in (one, two):
            other.hear(LAB, NODE)
    assert [written.message for written in bus.landed] == [lab(4), CORDONED, lab(5), UNCORDONED]
    assert bus.said() == {LAB.subject: lab(5), NODE.subject: UNCORDONED}


def test_two_with_different_files_of_one_source_write_seldom_and_not_for_long(bus):
    """While a change is rolled out they would fight at the speed of the bus, and every limit would flap."""
    one, two = started(bus, FOUR, "one"), started(bus, "", "two")
    one.hear(LAB)
    for _ in range(int(3600 / 0.5)):
        for each in (one, two):
            each.pass_time(0.5)
            one.hear(LAB)
            two.hear(LAB)
    assert len(bus.landed) < 2 + 2 * 7  # pauses of 30, 60, ... 1920 s fit into an hour
    two.do(LimitsRead(FOUR))
    one.hear(LAB)
    before = len(bus.landed)
    for _ in range(100):
        one.pass_time(PAUSE_MAX_S)
        two.pass_time(PAUSE_MAX_S)
    assert bus.said() == {LAB.subject: lab(4)}
    assert len(bus.landed) == before


def test_a_rivals_word_is_let_be_and_then_replaced(bus):
    """A process that ended with an old file would have the last word for ever."""
    watcher = started(bus, FOUR)
    bus.put(LAB, lab(3), "other-1")
    said = (
        "another pod-watcher of source 'cluster' has a different limits file: it sets other limits for namespace lab; "
        "retrying in 30 s"
    )
    assert watcher.step(e.Observed(e.Stream.BOOK, bus.values[LAB.subject])) == [WriteLogLine("warning", said)]
    watcher.now += PAUSE_FIRST_S - 1
    assert watcher.step(e.Ticked()) == []
    assert watcher.reading() == []  # nor does a reconnect end it
    watcher.now += 1
    assert watcher.step(e.Ticked()) == [write(2, LAB, lab(4), expected=1002)]


def test_an_edit_does_not_wait_for_a_rivals_pause(bus):
    watcher = started(bus, FOUR)
    bus.put(LAB, lab(3), "other-1")
    watcher.hear(LAB)
    assert watcher.step(LimitsRead(FIVE))[1:] == [write(2, LAB, lab(5), expected=1002)]


def test_the_first_of_two_sources_is_respected_in_a_reading_after_a_wipe_too(bus):
    """What is being kept would be written over theirs in the middle of the reading."""
    watcher = started(bus, FOUR)
    bus.wipe()
    bus.put(LAB, lab(3, "west"), "other-1")
    assert watcher.reading() == [
        WriteLogLine("warning", "namespace lab keeps what the limits file of 'west' set first"),
        said_in(bus),
    ]
    assert watcher.step(LimitsRead(""))[1:] == []


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("before", ["", FOUR, FIVE + CORDON])
def test_a_process_that_dies_with_its_writes_on_their_way_is_followed_by_one_that_makes_it_right(bus, before, landed):
    """Half of what a file says would hold until the next edit."""
    started(bus, before, "first")
    dying = Watcher(bus, "dying")
    dying.do(LimitsRead(FIVE))
    on_their_way = [each for each in dying.reading() if isinstance(each, e.Write)]
    if landed:
        for each in on_their_way:
            bus.take(each)
    after = started(bus, FIVE, "after")
    for each in on_their_way:
        bus.take(each)  # a duplicate, or one that was slow
    after.read()
    assert {k: v for k, v in bus.said().items() if not isinstance(v, Uncordoned)} == {LAB.subject: lab(5)}
