"""A Bound that was sent before the broker was wiped and landed after that, while its pod may have another slice."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    Bench,
    asked,
    gpu_report,
    news_of,
    ready_of,
    snapshot,
    whole_gpu,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import (
    Entry,
    Observed,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Write,
)
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.reasons import Refusal, RefusalReason

P1 = RequestId("p1")
ITS_NODE, OTHER = NodeName("node-a"), NodeName("node-b")
ITS, LATE = AllocationId("p1_old_1"), AllocationId("p1_old_2")
WANTS = msgspec.structs.replace(asked("p1"), held=msg.Held(node=ITS_NODE, allocation=ITS))
LIFE = Incarnation("900000")


def grant(allocation: AllocationId, node: NodeName) -> msg.Grant:
    return msg.Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu(allocation, node=node))


def bound(allocation: AllocationId, node: NodeName) -> msg.Bound:
    word = ready_of(grant(allocation, node))
    return msg.Bound(
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
        msg.SliceReport(booking=grant(each, node).booking, revision=1, state="ready", revoked=False) for each in there
    )
    written = empty.add_node(snapshot(node, (gpu_report(node, 0),), slices=reports, generation=2))
    return [write.message for write in written] + [
        write.message
        for each in there
        for write in empty.land_all(empty.observe(subjects.slice_(node, each), ready_of(grant(each, node))))
    ]


def words(instructions) -> list:
    return [
        each.message for each in instructions if isinstance(each, Write) and not isinstance(each.message, msg.Pending)
    ]


def late(empty, allocation: AllocationId = LATE, node: NodeName = OTHER) -> list:
    """It lands. Returns what is written for that, and for what follows."""
    heard = empty.observe(subjects.binding(P1), bound(allocation, node))
    return [write.message for write in empty.land_all(heard) if not isinstance(write.message, msg.Pending)]


def test_a_late_word_that_nobody_asks_for_is_released_when_its_source_has_told_all(empty):
    """It would stand for ever, and count as a pod that is bound."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    empty.tick()
    gone = [write.message for write in empty.land_all(empty.gone(grant(LATE, OTHER)))]
    assert [type(each) for each in gone] == [msg.Closed]
    empty.observe(subjects.ledger(OTHER, LATE), None)
    assert late(empty) == []
    synced = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0)
    empty.observe(subjects.source(FOLDER), synced)
    empty.now += 1
    empty.tick()
    empty.now += 31

    assert words(empty.tick()) == [msg.Released(request=P1, cause="its request is gone")]


def closed_and_late(empty) -> None:
    """The surplus slice is taken back after the wipe; then the binding to it lands, and its source is silent."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    assert [type(write.message) for write in empty.land_all(empty.gone(grant(LATE, OTHER)))] == [msg.Closed]
    assert late(empty) == [], "its pod may have another one"


def test_a_pod_keeps_its_slice_although_a_late_word_names_one_that_is_closed(empty):
    """It would be released before its source has spoken, and lose the slice that it runs on when its node is back."""
    closed_and_late(empty)
    assert words(empty.request(WANTS)) == []

    written = opened(empty, ITS_NODE, ITS)

    assert [(each.allocation, each.revision) for each in written if isinstance(each, msg.Bound)] == [(ITS, 2)]
    assert not [each for each in written if isinstance(each, (msg.Revoke, msg.Released))]


@pytest.mark.parametrize("speaks", ["before its node is back", "after that"])
def test_a_pod_that_runs_keeps_its_slice_although_a_refusal_lands_late(empty, speaks):
    """It was refused by who knew less than another allocator, or was configured otherwise, and never heard of it."""
    refusal = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known GPU model has this profile")
    empty.read_all(incarnation=LIFE)
    empty.observe(subjects.binding(P1), msg.Refused(request=P1, request_revision=1, refusal=refusal, source=FOLDER))
    written = [] if speaks == "after that" else words(empty.request(WANTS))

    written += opened(empty, ITS_NODE, ITS)
    if speaks == "after that":
        written += [write.message for write in empty.land_all(empty.request(WANTS))]

    assert [each.allocation for each in written if isinstance(each, msg.Bound)] == [ITS]
    assert not [each for each in written if isinstance(each, msg.Revoke)]


def two_late(empty, *there) -> list:
    """Binding and ask of before the wipe, when the slice that was bound is gone, and what agents say is `there`."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    for word in there:
        empty.observe(subjects.slice_(ITS_NODE, ITS), word)
    assert [type(write.message) for write in empty.land_all(empty.gone(grant(LATE, OTHER)))] == [msg.Closed]
    heard = late(empty)
    asks = [write.message for write in empty.land_all(empty.request(asked("p1")))]
    return [*heard, *(each for each in asks if not isinstance(each, msg.Pending))]


def test_a_pod_of_which_two_words_are_late_gets_no_slice_that_is_broken(empty):
    """It would wait for ever for a slice that cannot be used, without a reason."""
    two_late(empty, msg.SliceDegraded(allocation=ITS, request=P1, revision=1, message="gone"))
    report = msg.SliceReport(booking=grant(ITS, ITS_NODE).booking, revision=1, state="degraded", revoked=False)

    written = empty.add_node(snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,), generation=2))

    assert [write.message.booking.allocation for write in written if isinstance(write.message, msg.Revoke)] == [ITS]


def test_the_allocator_goes_on_when_a_node_is_opened_for_which_an_orphaned_answer_waited(empty: Bench):
    """It waits for one node, then for another one; the allocator would end, and no pod be served anywhere."""
    empty.read_all(incarnation=LIFE)
    # A picture of node-a of the life before lands late, and a binding to a slice on node-b. p1 has gone meanwhile.
    report = msg.SliceReport(booking=grant(ITS, ITS_NODE).booking, revision=1, state="ready", revoked=False)
    empty.pull(snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,), generation=1), incarnation="1000")
    empty.observe(subjects.binding(P1), bound(LATE, OTHER))
    empty.observe(subjects.source(FOLDER), msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0))
    at = empty.allocator.ctx.facts.sequences[Stream.BOOK][subjects.binding(P1).subject]
    for _ in range(40):
        empty.now += 1
        empty.tick()
    empty.handle(ReadingStarted(Stream.BOOK, LIFE))  # as `unbacked` has asked for
    empty.handle(Observed(Stream.BOOK, Entry(subjects.binding(P1).subject, at, OperationId("x-1"), bound(LATE, OTHER))))
    empty.handle(ReadingCaughtUp(Stream.BOOK))
    for number in range(100):  # more of OTHER's pods wait for it than are looked at in one tick
        name = f"w{number}"
        held = msg.Held(node=OTHER, allocation=AllocationId(f"{name}_old_1"))
        empty.request(msgspec.structs.replace(asked(name), held=held))
    passes(empty, 2)
    assert empty.allocator.ctx.node_waits.node_of[P1] == ITS_NODE

    # Its agent is back, has unmade that slice, and has more news than was pulled.
    empty.observe(subjects.node(ITS_NODE), news_of(snapshot(ITS_NODE, (), generation=3)))
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
    bench.land_all(bench.pull(seen, incarnation=LIFE))
