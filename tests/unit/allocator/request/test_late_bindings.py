"""A Bound that was sent before the broker was wiped and landed after that, while its pod may have another slice."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    Bench,
    all_said,
    asked,
    bound_of,
    gpu_report,
    kinds,
    messages,
    news_of,
    only,
    report_of,
    snapshot,
    whole_gpu,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId
from sluice.contracts.reasons import Refusal, RefusalReason

P1 = RequestId("p1")
ITS_NODE, OTHER = NodeName("node-a"), NodeName("node-b")
ITS, LATE = AllocationId("p1_old_1"), AllocationId("p1_old_2")
WANTS = msgspec.structs.replace(asked("p1"), held=msg.Held(node=ITS_NODE, allocation=ITS))
LIFE = Incarnation("900000")


def grant(allocation: AllocationId, node: NodeName) -> msg.Grant:
    return msg.Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu(allocation, node=node))


LATE_BOUND = bound_of(grant(LATE, OTHER))


def opened(empty, node: NodeName, *there: AllocationId) -> list:
    """A node comes back after the wipe, with what its agent reports, and is opened. Returns the messages written."""
    reports = tuple(report_of(grant(each, node).booking) for each in there)
    written = empty.add_node(snapshot(node, (gpu_report(node, 0),), slices=reports, generation=2))
    return messages(written) + [word for each in there for word in empty.words(empty.ready(grant(each, node)))]


def late(empty) -> list:
    """It lands. Returns what is written for that, and for what follows."""
    return empty.words(empty.observe(subjects.binding(P1), LATE_BOUND), but=msg.Pending)


def closed(empty) -> None:
    """The surplus slice is taken back after the wipe."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    assert kinds(empty.words(empty.gone(grant(LATE, OTHER)))) == [msg.Closed]


def test_a_late_message_without_a_request_is_released_when_its_source_has_published_all(empty):
    """It would stand for ever, and count as a pod that is bound."""
    closed(empty)
    empty.observe(subjects.ledger(OTHER, LATE), None)
    assert late(empty) == []
    empty.observe(*all_said())
    empty.now += 1
    empty.tick()
    empty.now += 31
    assert messages(empty.tick(), but=msg.Pending) == [msg.Released(request=P1, cause="its request is gone")]


def test_a_pod_keeps_its_slice_although_a_late_word_names_one_that_is_closed(empty):
    """It would be released before its source has published, and lose the slice it runs on when its node is back."""
    closed(empty)
    assert late(empty) == [], "its pod may have another one"
    assert messages(empty.request(WANTS), but=msg.Pending) == []
    written = opened(empty, ITS_NODE, ITS)
    assert [(each.allocation, each.revision) for each in only(msg.Bound, written)] == [(ITS, 2)]
    assert not only((msg.Revoke, msg.Released), written)


@pytest.mark.parametrize("speaks", ["before its node is back", "after that"])
def test_a_pod_that_runs_keeps_its_slice_although_a_refusal_lands_late(empty, speaks):
    """An allocator refused it that knew less than another, or was configured otherwise, and never observed it."""
    refusal = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no known GPU model has this profile")
    empty.read_all(incarnation=LIFE)
    empty.observe(subjects.binding(P1), msg.Refused(request=P1, request_revision=1, refusal=refusal, source=FOLDER))
    written = [] if speaks == "after that" else messages(empty.request(WANTS))
    written += opened(empty, ITS_NODE, ITS)
    if speaks == "after that":
        written += empty.asks(WANTS)

    assert [each.allocation for each in only(msg.Bound, written)] == [ITS]
    assert not only(msg.Revoke, written)


def test_a_pod_of_which_two_words_are_late_gets_no_slice_that_is_broken(empty):
    """It would wait for ever for a slice that cannot be used, without a reason."""
    empty.read_all(incarnation=LIFE)
    opened(empty, OTHER)
    empty.breaks(grant(ITS, ITS_NODE))
    assert kinds(empty.words(empty.gone(grant(LATE, OTHER)))) == [msg.Closed]
    late(empty)
    empty.asks(asked("p1"))
    report = report_of(grant(ITS, ITS_NODE).booking, state="degraded")
    written = empty.add_node(snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,), generation=2))
    assert [each.booking.allocation for each in only(msg.Revoke, written)] == [ITS]


def test_the_allocator_goes_on_when_a_node_is_opened_for_which_an_orphaned_answer_waited(empty: Bench):
    """It waits for one node, then for another one; the allocator would end, and no pod be served anywhere."""
    empty.read_all(incarnation=LIFE)
    # A picture of node-a of before the wipe lands late, and a binding to a slice on node-b. p1 has gone meanwhile.
    report = report_of(grant(ITS, ITS_NODE).booking)
    empty.pull(snapshot(ITS_NODE, (gpu_report(ITS_NODE, 0),), slices=(report,)), incarnation="1000")
    empty.observe(subjects.binding(P1), LATE_BOUND)
    empty.observe(*all_said())
    at = empty.allocator.ctx.facts.sequences[Stream.BOOK][subjects.binding(P1).subject]
    for _ in range(40):
        empty.now += 1
        empty.tick()
    empty.handle(ReadingStarted(Stream.BOOK, LIFE))  # as `unbacked` has asked for
    empty.handle(Observed(Stream.BOOK, Entry(subjects.binding(P1).subject, at, OperationId("x-1"), LATE_BOUND)))
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
