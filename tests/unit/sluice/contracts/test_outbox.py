"""The rules of writing: each with the case in which a simpler outbox books a place twice, or loses one."""

import pytest
from factories.words import write_of

from sluice.contracts.bus import events, subjects
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import AnyMessage, WaitOver
from sluice.contracts.outbox import EXPLAIN_TIMEOUT_S, IN_FLIGHT_MAX, LAGS_MAX_S, REREAD_S, Contested, Outbox, Settled

NODE = NodeName("n1")
A = subjects.ledger(NODE, AllocationId("a"))
B = subjects.ledger(NODE, AllocationId("b"))
OTHER = subjects.ledger(NodeName("n2"), AllocationId("a"))
SLICE = subjects.slice_(NODE, AllocationId("a"))
FIRST = OperationId("run-1")
SECOND = OperationId("run-2")


def word(text: str) -> AnyMessage:
    return WaitOver(request=RequestId(text))


def entry(address, sequence, operation="other", message=None) -> events.Entry:
    return events.Entry(address.subject, sequence, OperationId(operation), message or word("other"))


def write(operation, address, expected, message, **more) -> events.Write:
    return write_of(address, message, expected, operation, **more)


class Desk:
    def __init__(self, *entries: events.Entry, stream: events.Stream = events.Stream.BOOK, life: str = "1") -> None:
        self.stream = stream
        self.outbox = Outbox(RunId("run"), frozenset({"ledger", "binding", "slice"}))
        self.reports: list[Settled | Contested] = []
        self.read(*entries, life=life)

    def read(self, *entries: events.Entry, life: str = "1", now: float = 0.0) -> list[events.BusInstruction]:
        """The stream is reread and holds exactly `entries`."""
        self.tell(events.ReadingStarted(self.stream, Incarnation(life)), now)
        for each in entries:
            self.tell(events.Observed(self.stream, each), now)
        return self.tell(events.ReadingCaughtUp(self.stream), now)

    def tell(self, event: object, now: float = 0.0) -> list[events.BusInstruction]:
        self.reports += self.outbox.handle(event, now)  # type: ignore[arg-type]
        return self.outbox.drain()

    def see(self, each: events.Entry) -> list[events.BusInstruction]:
        return self.tell(events.Observed(self.stream, each))


def granting(*entries: events.Entry, life: str = "1", at=B) -> Desk:
    """It has sent a grant over what it has read."""
    desk = Desk(*entries, life=life)
    desk.outbox.commit(at, word("grant"))
    desk.outbox.drain()
    return desk


def test_nothing_is_booked_before_the_book_was_read_whole() -> None:
    outbox = Outbox(RunId("run"), frozenset({"ledger"}))
    outbox.commit(A, word("grant"))
    assert outbox.drain() == []
    outbox.handle(events.ReadingStarted(events.Stream.BOOK, Incarnation("1")), 0)
    outbox.handle(events.Observed(events.Stream.BOOK, entry(B, 5)), 0)
    assert outbox.drain() == []
    outbox.handle(events.ReadingCaughtUp(events.Stream.BOOK), 0)
    assert outbox.drain() == [write(FIRST, A, 5, word("grant"))]


def test_the_guard_of_a_refusal_is_never_used() -> None:
    """W2: entry 11 may arrive after 12; a guard taken from the refusal books a place twice."""
    desk = granting(entry(A, 5))
    assert desk.tell(events.WriteRefused(FIRST, 12)) == []
    desk.outbox.commit(B, word("again"))
    assert desk.outbox.drain() == []
    assert desk.see(entry(A, 11)) == []
    assert desk.reports == []
    assert desk.see(entry(A, 12)) == [write(SECOND, B, 12, word("again"))]
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=False)]


def test_writes_under_one_guard_go_one_after_another_each_by_the_one_before() -> None:
    """W2: an own accepted write moves the guard before it is observed."""
    desk = Desk(entry(A, 5))
    desk.outbox.commit(A, word("one"))
    desk.outbox.commit(B, word("two"))
    assert desk.outbox.drain() == [write(FIRST, A, 5, word("one"))]
    assert desk.tell(events.WriteAccepted(FIRST, 6)) == [write(SECOND, B, 6, word("two"))]
    assert desk.reports == [Settled(FIRST, A, word("one"), landed=True)]


def test_an_outage_does_not_pile_up_writes() -> None:
    """At most IN_FLIGHT_MAX without an answer; the rest waits and follows."""
    desk = Desk()
    for number in range(IN_FLIGHT_MAX + 5):
        desk.outbox.commit(subjects.binding(RequestId(f"r{number}")), word("x"))
    assert len(desk.outbox.drain()) == IN_FLIGHT_MAX
    assert len(desk.tell(events.WriteAccepted(FIRST, 1))) == 1


def test_a_write_without_an_answer_is_written_again_with_the_same_guard_and_operation() -> None:
    """W3: also when something else was read meanwhile; a fresh guard could let both attempts land."""
    desk = granting(entry(A, 5))
    assert desk.tell(events.WriteUnknown(FIRST)) == [write(FIRST, B, 5, word("grant"), attempt=2)]
    assert desk.see(entry(A, 6)) == []
    assert desk.tell(events.WriteUnknown(FIRST)) == [write(FIRST, B, 5, word("grant"), attempt=3)]
    assert desk.tell(events.WriteAccepted(FIRST, 7)) == []
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=True)]


def test_a_write_whose_answer_was_lost_is_found_to_have_landed() -> None:
    """W3: the second attempt is refused by the first; the operation shows that it is the same."""
    desk = granting(entry(A, 5))
    desk.tell(events.WriteUnknown(FIRST))
    assert desk.tell(events.WriteRefused(FIRST, 6)) == []
    assert desk.reports == []
    desk.see(entry(B, 6, FIRST, word("grant")))
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=True)]


def test_a_write_that_is_seen_before_its_answer_is_settled_once() -> None:
    desk = granting(entry(A, 5))
    desk.see(entry(B, 6, FIRST, word("grant")))
    assert desk.tell(events.WriteAccepted(FIRST, 6)) == []
    assert desk.tell(events.WriteUnknown(FIRST)) == []
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=True)]


def test_a_guard_that_stepped_back_is_learned_by_reading_again() -> None:
    """After closing messages expired, or the broker was wiped, nothing will come that explains the refusal."""
    desk = granting(entry(A, 5), entry(B, 7))
    assert desk.tell(events.WriteRefused(FIRST, 5)) == [events.ReadAgain(events.Stream.BOOK)]
    desk.outbox.commit(B, word("again"))
    assert desk.read(entry(A, 5)) == [write(SECOND, B, 5, word("again"))]
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=False)]


def refused(sequence: int) -> Desk:
    """A grant was refused by an entry that was not read; the stream is reread to explain that."""
    desk = granting(entry(A, 5))
    desk.tell(events.WriteRefused(FIRST, sequence), now=10.0)
    desk.outbox.tick(10.0 + EXPLAIN_TIMEOUT_S)
    assert desk.outbox.drain() == []
    desk.outbox.tick(10.1 + EXPLAIN_TIMEOUT_S)
    assert desk.outbox.drain() == [events.ReadAgain(events.Stream.BOOK)]
    return desk


def test_a_refusal_that_stays_unexplained_is_looked_into() -> None:
    """The refusing entry may have expired before it was read: the stream is then reread, repeatedly."""
    desk = refused(9)
    desk.tell(events.ReadingStarted(events.Stream.BOOK, Incarnation("1")), now=12.2)
    assert desk.reports == []
    desk.outbox.tick(12.3 + EXPLAIN_TIMEOUT_S)
    assert desk.outbox.drain() == []


@pytest.mark.parametrize(("life", "shown"), [("1", entry(A, 5)), ("1", entry(OTHER, 10)), ("0", entry(A, 3))])
def test_a_reading_that_began_after_the_refusal_tells_all(life: str, shown: events.Entry) -> None:
    """The refusing entry was overwritten or has expired, or went with a wiped broker: nothing else comes."""
    desk = refused(9)
    desk.read(shown, life=life, now=12.2)
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=False)]


def test_an_own_write_that_is_older_than_what_was_read_since_is_not_known_again() -> None:
    """A reading showed that STATE forgot it before its answer came: otherwise it would never be written again."""
    desk = Desk(stream=events.Stream.STATE)
    desk.outbox.keep(SLICE, word("ready"))
    assert desk.outbox.drain() == [write(FIRST, SLICE, 0, word("ready"))]
    other = subjects.slice_(NODE, AllocationId("b"))
    assert desk.read(entry(other, 9)) == []
    assert desk.tell(events.WriteAccepted(FIRST, 5)) == [write(SECOND, SLICE, 0, word("ready"))]
    assert desk.tell(events.WriteAccepted(SECOND, 10)) == []


def test_a_commit_that_is_older_than_what_was_read_since_has_not_landed() -> None:
    """A broker was wiped before its answer came: its place would count as booked without a ledger entry."""
    desk = granting(at=A)
    desk.read(entry(B, 1009), life="1000")
    desk.tell(events.WriteAccepted(FIRST, 5))
    assert desk.reports == [Settled(FIRST, A, word("grant"), landed=False)]
    assert desk.outbox.current(A) is None
    desk.outbox.commit(A, word("grant"))
    assert desk.outbox.drain() == [write(SECOND, A, 1009, word("grant"))]


def test_an_own_write_that_lands_in_a_bus_made_by_a_slow_clock_is_the_last_value() -> None:
    """What another one wrote before the wipe has a larger number, and is gone."""
    desk = granting(entry(A, 1000), life="1000")
    desk.see(entry(B, 1001))
    desk.tell(events.ReadingStarted(events.Stream.BOOK, Incarnation("10")))
    landed = entry(B, 10, FIRST, word("grant"))
    desk.see(landed)
    assert desk.reports == [Settled(FIRST, B, word("grant"), landed=True)]
    assert desk.outbox.current(B) == landed


def test_a_commit_that_was_not_sent_can_be_taken_back_and_one_that_was_cannot() -> None:
    """A withdrawal while committing waits for the settled result."""
    desk = Desk()
    sent = desk.outbox.commit(A, word("one"))
    waiting = desk.outbox.commit(B, word("two"))
    desk.outbox.drain()
    assert desk.outbox.cancel(B, waiting)
    assert not desk.outbox.cancel(A, sent)
    assert desk.outbox.busy(A)
    assert not desk.outbox.busy(B)
    assert desk.tell(events.WriteAccepted(sent, 1)) == []


def test_a_paused_outbox_settles_but_begins_nothing() -> None:
    """A service that lost its lease finishes what is in flight."""
    desk = granting(at=A)
    desk.outbox.paused = True
    desk.outbox.commit(B, word("two"))
    assert desk.tell(events.WriteAccepted(FIRST, 1)) == []
    assert desk.reports == [Settled(FIRST, A, word("grant"), landed=True)]
    desk.outbox.paused = False
    assert desk.outbox.drain() == [write(SECOND, B, 1, word("two"))]


def test_only_the_newest_of_what_shall_be_kept_is_written() -> None:
    """Unsent messages of the same subject are replaced."""
    desk = Desk(stream=events.Stream.STATE)
    desk.outbox.keep(SLICE, word("one"))
    desk.outbox.drain()
    desk.outbox.keep(SLICE, word("two"))
    desk.outbox.keep(SLICE, word("three"))
    assert desk.outbox.drain() == []
    assert desk.tell(events.WriteAccepted(FIRST, 1)) == [write(SECOND, SLICE, 1, word("three"))]


def test_a_contested_value_is_reported_and_written_again_unless_forgotten() -> None:
    """Two writers of one kind: the core decides whether to go on."""
    desk = Desk(entry(SLICE, 3, message=word("ready")), stream=events.Stream.STATE)
    desk.outbox.keep(SLICE, word("ready"))
    desk.outbox.drain()
    other = entry(SLICE, 4)
    assert desk.see(other) == [write(FIRST, SLICE, 4, word("ready"))]
    assert desk.reports == [Contested(SLICE, other)]
    desk.outbox.forget(SLICE)
    desk.tell(events.WriteRefused(FIRST, 5))
    assert desk.see(entry(SLICE, 5)) == []


def agent(keeps: str, ttl_s: int | None = None) -> Desk:
    """An agent's, which has read nothing and keeps a message about its slice."""
    desk = Desk()
    desk.outbox = Outbox(RunId("run"), frozenset({"slice"}), reading="last")
    desk.outbox.keep(SLICE, word(keeps), ttl_s=ttl_s)
    desk.outbox.drain()
    return desk


def test_an_agent_whose_write_is_refused_reads_and_writes_again() -> None:
    """A refusal is settled by the current value: its own message, or another's."""
    desk = agent("ready")
    desk.tell(events.LastRead(SLICE.subject, None))
    desk.tell(events.WriteUnknown(FIRST))
    assert desk.tell(events.WriteRefused(FIRST, 6)) == [events.ReadLast(events.Stream.STATE, SLICE.subject)]
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 6, FIRST, word("ready")))) == []
    desk.outbox.keep(SLICE, word("gone"))
    found = desk.outbox.drain()
    if found == [events.ReadLast(events.Stream.STATE, SLICE.subject)]:
        found = desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 6, FIRST, word("ready"))))
    assert found == [write(SECOND, SLICE, 6, word("gone"))]


def test_an_agent_that_is_shown_less_than_has_refused_its_write_looks_again_after_a_pause() -> None:
    """With a lagging server it would write, be refused and read in a tight loop."""
    desk = agent("ready")
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 3))) == [write(FIRST, SLICE, 3, word("ready"))]
    assert desk.tell(events.WriteRefused(FIRST, 5)) == [events.ReadLast(events.Stream.STATE, SLICE.subject)]
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 3))) == []
    desk.outbox.tick(REREAD_S / 2)
    assert desk.outbox.drain() == []
    desk.outbox.tick(REREAD_S + 0.1)
    assert desk.outbox.drain() == [events.ReadLast(events.Stream.STATE, SLICE.subject)]
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 5))) == [write(SECOND, SLICE, 5, word("ready"))]


@pytest.mark.parametrize("forgotten", [True, False])
def test_an_agent_goes_by_what_it_is_shown_when_what_has_refused_its_write_is_there_no_more(*, forgotten: bool) -> None:
    """The bus has forgotten it, as a reconnect shows; or it was a closing message that expired."""
    desk = agent("ready")
    desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 3)))
    desk.tell(events.WriteRefused(FIRST, 5))
    if forgotten:
        desk.outbox.recheck()
    now = 0.0 if forgotten else LAGS_MAX_S
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 3)), now) == [write(SECOND, SLICE, 3, word("ready"))]


def test_a_closing_message_of_an_earlier_run_is_not_repeated() -> None:
    """All old closing messages would be repeated, with another TTL, whenever an agent starts."""
    desk = agent("gone", ttl_s=60)
    assert desk.tell(events.LastRead(SLICE.subject, entry(SLICE, 3, OperationId("before-1"), word("gone")))) == []
    assert not desk.outbox.keeps_anything
