"""A Bound that was sent before the broker was wiped and landed after that, while its pod may have another slice."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, INCARNATION, Bench, asked, gpu_report, ready_of, snapshot, whole_gpu

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import (
    Entry,
    Observed,
    ReadAgain,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Ticked,
    Write,
)
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import (
    Bound,
    Closed,
    Grant,
    Held,
    NodeChanged,
    NodeInventory,
    Pending,
    Refused,
    Released,
    Revoke,
    SliceDegraded,
    SliceReport,
    SourceSynced,
)
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.state.conditions import NodeWaits

P1 = RequestId("p1")
ITS_NODE, OTHER = NodeName("node-a"), NodeName("node-b")
ITS, LATE = AllocationId("p1_old_1"), AllocationId("p1_old_2")
WANTS = msgspec.structs.replace(asked("p1"), held=Held(node=ITS_NODE, allocation=ITS))
LIFE = Incarnation("900000")


def grant(allocation: AllocationId, node: NodeName) -> Grant:
    return Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu(allocation, node=node))


def bound(allocation: AllocationId, node: NodeName) -> Bound:
    word = ready_of(grant(allocation, node))
    return Bound(
        request=P1,
        request_revision=1,
        allocation=allocation,
        node=node,
        revision=1,
        ticket=word.ticket,
        containers=word.containers,
        source=FOLDER,
    )


def opened(empty, node: NodeName, *there: AllocationId) -> list:
    """A node comes back after the wipe, with what its agent reports, and is opened. Returns the words written."""
    reports = tuple(
        SliceReport(booking=grant(each, node).booking, revision=1, state="ready", revoked=False) for each in there
    )
    written = empty.add_node(snapshot(node, (gpu_report(node, 0),), slices=reports, generation=2))
    return [write.message for write in written] + [
        write.message
        for each in there
        for write in empty.land_all(empty.observe(subjects.slice_(node, each), ready_of(grant(each, node))))
    ]


def words(instructions) -> list:
    return [each.message for each in instructions if isinstance(each, Write) and not isinstance(each.message, Pending)]


def late(empty, allocation: AllocationId = LATE, node: NodeName = OTHER) -> list:
    """It lands. Returns what is written for that, and for what follows."""
    heard = empty.observe(subjects.binding(P1), bound(allocation, node))
    return [write.message for write in empty.land_all(heard) if not isinstance(write.message, Pending)]


def test_a_pod_keeps_the_slice_it_runs_on_and_the_other_one_is_taken_back(empty):
    """Its own would be surplus: a running pod would lose its slice for a word that is over."""
    empty.read_all((subjects.request(P1), WANTS), incarnation=LIFE)
    opened(empty, OTHER, LATE)
    first = late(empty)
    assert first == [], "its node is not open yet, and may have its slice"

    written = opened(empty, ITS_NODE, ITS)

    again = [each for each in written if isinstance(each, Bound)]
    assert [(each.allocation, each.revision) for each in again] == [(ITS, 2)]
    assert [each.booking.allocation for each in written if isinstance(each, Revoke)] == [LATE]


def test_a_pod_whose_own_slice_is_lost_gets_no_other_by_a_late_word(empty):
    """It cannot leave its node: it would hold a slice that it can never use."""
    empty.read_all((subjects.request(P1), WANTS), incarnation=LIFE)
    opened(empty, OTHER, LATE)
    assert late(empty) == []

    written = opened(empty, ITS_NODE)

    (revoke,) = [each for each in written if isinstance(each, Revoke)]
    assert revoke.booking.allocation == LATE
    assert not [each for each in written if isinstance(each, (Bound, Released))]
    closed = [write.message for write in empty.land_all(empty.gone(grant(LATE, OTHER)))]
    assert [type(each) for each in closed] == [Closed, Released]


@pytest.mark.parametrize("says", ["source", "nothing"])
def test_a_pod_of_a_silent_source_is_not_released_by_a_late_word(empty, says):
    """Its source speaks after its restart, and would hear that its pod, which runs, has nothing."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    word = bound(LATE, OTHER)
    if says == "nothing":  # an older allocator's: its source is unknown
        word = msgspec.structs.replace(word, source="")
    heard = words(empty.observe(subjects.binding(P1), word))
    assert heard == []
    empty.now += 31
    asks = empty.handle(Ticked())
    assert ReadAgain(Stream.BOOK) in asks

    head = empty.allocator.ctx.facts.heads[OTHER]
    empty.handle(ReadingStarted(Stream.BOOK, LIFE))
    empty.observe(subjects.head(OTHER), head)
    empty.observe(subjects.binding(P1), word)
    read = words(empty.handle(ReadingCaughtUp(Stream.BOOK)))

    if says == "nothing":
        assert read == [Released(request=P1, cause="its request is gone")]
        return
    assert read == []
    opened(empty, ITS_NODE, ITS)
    (again,) = [write.message for write in empty.land_all(empty.request(WANTS)) if isinstance(write.message, Bound)]
    assert (again.allocation, again.revision) == (ITS, 2)


def test_a_late_word_that_nobody_asks_for_is_released_when_its_source_has_told_all(empty):
    """It would stand for ever, and count as a pod that is bound."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    empty.tick()
    gone = [write.message for write in empty.land_all(empty.gone(grant(LATE, OTHER)))]
    assert [type(each) for each in gone] == [Closed]
    empty.observe(subjects.ledger(OTHER, LATE), None)
    assert late(empty) == []
    synced = SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0)
    empty.observe(subjects.source(FOLDER), synced)
    empty.now += 1
    empty.tick()
    empty.now += 31

    assert words(empty.tick()) == [Released(request=P1, cause="its request is gone")]


def closed_and_late(empty) -> None:
    """The surplus slice is taken back after the wipe; then the binding to it lands, and its source is silent."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    assert [type(write.message) for write in empty.land_all(empty.gone(grant(LATE, OTHER)))] == [Closed]
    assert late(empty) == [], "its pod may have another one"


def test_a_pod_keeps_its_slice_although_a_late_word_names_one_that_is_closed(empty):
    """It would be released before its source has spoken, and lose the slice that it runs on when its node is back."""
    closed_and_late(empty)
    assert words(empty.request(WANTS)) == []

    written = opened(empty, ITS_NODE, ITS)

    assert [(each.allocation, each.revision) for each in written if isinstance(each, Bound)] == [(ITS, 2)]
    assert not [each for each in written if isinstance(each, (Revoke, Released))]


@pytest.mark.parametrize("first", ["the slice is closed", "the word lands"])
def test_a_late_word_of_a_closed_slice_ends_when_its_source_has_told_all(empty, first):
    """Its pod is gone, too: the word would stand for ever."""
    if first == "the slice is closed":
        closed_and_late(empty)
    else:
        empty.read_all((subjects.binding(P1), bound(LATE, OTHER)), incarnation=LIFE)
        opened(empty, OTHER)
        assert [type(write.message) for write in empty.land_all(empty.gone(grant(LATE, OTHER)))] == [Closed]
    empty.observe(subjects.source(FOLDER), SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0))
    empty.now += 1
    assert words(empty.tick()) == []
    empty.now += 31

    assert words(empty.tick()) == [Released(request=P1, cause="its request is gone")]


@pytest.mark.parametrize("speaks", ["before its node is back", "after that"])
def test_a_pod_that_runs_keeps_its_slice_although_a_refusal_lands_late(empty, speaks):
    """It was refused by who knew less than another allocator, or was configured otherwise, and never heard of it."""
    refusal = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known GPU model has this profile")
    empty.read_all(incarnation=LIFE)
    empty.observe(subjects.binding(P1), Refused(request=P1, request_revision=1, refusal=refusal, source=FOLDER))
    written = [] if speaks == "after that" else words(empty.request(WANTS))

    written += opened(empty, ITS_NODE, ITS)
    if speaks == "after that":
        written += [write.message for write in empty.land_all(empty.request(WANTS))]

    assert [each.allocation for each in written if isinstance(each, Bound)] == [ITS]
    assert not [each for each in written if isinstance(each, Revoke)]


def two_late(empty, *there) -> list:
    """Binding and ask of before the wipe, when the slice that was bound is gone, and what agents say is `there`."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    for word in there:
        empty.observe(subjects.slice_(ITS_NODE, ITS), word)
    assert [type(write.message) for write in empty.land_all(empty.gone(grant(LATE, OTHER)))] == [Closed]
    heard = late(empty)
    asks = [write.message for write in empty.land_all(empty.request(asked("p1")))]
    return [*heard, *(each for each in asks if not isinstance(each, Pending))]


def test_a_pod_of_which_two_words_are_late_keeps_the_slice_that_it_runs_on(empty):
    """It would hear that it has nothing, for the sake of a slice that was surplus, and be ended."""
    assert two_late(empty, ready_of(grant(ITS, ITS_NODE))) == [], "its slice is still to be booked"

    written = opened(empty, ITS_NODE, ITS)

    assert not [each for each in written if isinstance(each, (Revoke, Released))]
    assert [(each.allocation, each.revision) for each in written if isinstance(each, Bound)] == [(ITS, 2)]


def test_a_pod_of_which_two_words_are_late_gets_no_slice_that_is_broken(empty):
    """It would wait for ever for a slice that cannot be used, without a reason."""
    two_late(empty, SliceDegraded(allocation=ITS, request=P1, revision=1, message="gone"))
    report = SliceReport(booking=grant(ITS, ITS_NODE).booking, revision=1, state="degraded", revoked=False)

    written = empty.add_node(snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,), generation=2))

    assert [write.message.booking.allocation for write in written if isinstance(write.message, Revoke)] == [ITS]


def test_a_binding_that_a_lagging_reading_does_not_show_is_looked_at_again(empty: Bench):
    """Its pod would wait until something else has the book reread."""
    empty.read_all((subjects.request(P1), asked("p1")), incarnation=LIFE)
    opened(empty, OTHER)
    head = empty.allocator.ctx.facts.heads[OTHER]
    head_at = empty.allocator.ctx.facts.sequences[subjects.head(OTHER).subject]
    words(empty.observe(subjects.binding(P1), bound(LATE, OTHER)))
    entry = empty.allocator.ctx.outbox.current(subjects.binding(P1))
    empty.now += 31
    assert ReadAgain(Stream.BOOK) in empty.handle(Ticked())

    # A server that lags serves the reading: it has the head, and not yet the binding, which follows.
    empty.handle(ReadingStarted(Stream.BOOK, LIFE))
    empty.handle(Observed(Stream.BOOK, Entry(subjects.head(OTHER).subject, head_at, OperationId("h-1"), head)))
    said = words(empty.handle(ReadingCaughtUp(Stream.BOOK)))
    said += words(empty.handle(Observed(Stream.BOOK, entry)))
    again = False
    for _ in range(600):
        empty.now += 1
        out = empty.handle(Ticked())
        again = again or ReadAgain(Stream.BOOK) in out
        said += words(out)

    assert again, (said, empty.allocator.unbacked)


def test_who_waits_for_another_node_than_before_waits_for_that_alone():
    """Else the allocator ends when the first of them is opened, with everybody's places."""
    waits = NodeWaits()
    waits.hold(P1, ITS_NODE)
    waits.hold(P1, OTHER)
    waits.let_go(P1)
    assert waits.release(ITS_NODE) == {}


def test_the_allocator_goes_on_when_a_node_is_opened_for_which_an_orphaned_answer_waited(empty: Bench):
    """It waits for one node, then for another one; the allocator would end, and no pod be served anywhere."""
    empty.read_all(incarnation=LIFE)
    # A picture of node-a of the life before lands late, and a binding to a slice on node-b. p1 has gone meanwhile.
    report = SliceReport(booking=grant(ITS, ITS_NODE).booking, revision=1, state="ready", revoked=False)
    old = snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,), generation=1)
    picture = NodeInventory(snapshot=old, stale=False, incarnation="1000")
    empty.observe(subjects.inventory(ITS_NODE), picture)
    empty.observe(subjects.binding(P1), bound(LATE, OTHER))
    empty.observe(subjects.source(FOLDER), SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0))
    at = empty.allocator.ctx.facts.sequences[subjects.binding(P1).subject]
    for _ in range(40):
        empty.now += 1
        empty.tick()
    empty.handle(ReadingStarted(Stream.BOOK, LIFE))  # as `unbacked` has asked for
    empty.handle(Observed(Stream.BOOK, Entry(subjects.binding(P1).subject, at, OperationId("x-1"), bound(LATE, OTHER))))
    empty.handle(ReadingCaughtUp(Stream.BOOK))
    for number in range(100):  # more of OTHER's pods wait for it than are looked at in one tick
        name = f"w{number}"
        held = Held(node=OTHER, allocation=AllocationId(f"{name}_old_1"))
        empty.request(msgspec.structs.replace(asked(name), held=held))
    passes(empty, 2)
    assert empty.allocator.ctx.node_waits.node_of[P1] == ITS_NODE

    # Its agent is back, has unmade that slice, and has more news than was pulled.
    news = NodeChanged(
        node=ITS_NODE, endpoint="127.0.0.1:1", boot_id="boot-1", agent_run=RunId("agent-1"), generation=3, gpus=()
    )
    empty.observe(subjects.node(ITS_NODE), news)
    pulled(empty, generation=2)
    for _ in range(20):
        passes(empty, 1)
        if P1 not in empty.allocator.ctx.node_waits.node_of:
            break
    pulled(empty, generation=3)  # and is opened


def passes(bench: Bench, seconds: int) -> None:
    for _ in range(seconds):
        bench.now += 1
        bench.land_all(bench.tick())


def pulled(bench: Bench, generation: int) -> None:
    seen = snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), generation=generation)
    bench.land_all(
        bench.observe(subjects.inventory(ITS_NODE), NodeInventory(snapshot=seen, stale=False, incarnation=LIFE))
    )


def test_a_pod_that_waits_is_not_released_for_what_it_was_bound_to_in_another_life(empty):
    """It was waived then, so that its pod has nothing: it would lose its request for a slice that it never had."""
    empty.read_all((subjects.request(P1), asked("p1")), incarnation=LIFE)
    word = msgspec.structs.replace(bound(LATE, OTHER), incarnation=INCARNATION)
    assert words(empty.observe(subjects.binding(P1), word)) == []

    (grant,) = [each for each in opened(empty, OTHER) if isinstance(each, (Grant, Revoke, Released))]
    assert isinstance(grant, Grant)
    (again,) = [write.message for write in empty.land_all(empty.ready(grant)) if isinstance(write.message, Bound)]
    assert (again.request, again.allocation, again.incarnation) == (P1, grant.booking.allocation, LIFE)
