"""What is left of slices that are nowhere any more, because broker and disk were lost: messages, memories, tickets."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    asked,
    bound_of,
    claim,
    gpu_report,
    messages,
    news_of,
    only,
    report_of,
    snapshot,
    whole_gpu,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, Stream, Ticked
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.contracts.ticket_paths import ticket_name

NODE, OTHER = NodeName("node-a"), NodeName("node-b")
OLD = AllocationId("p1_old_1")
HELD = msg.Held(node=NODE, allocation=OLD)


GPUS = (gpu_report("node-a", 0),)
ASKS = replace(asked("p1"), held=HELD)
"""A pod that remembers its slice."""
GRANT = msg.Grant(revision=3, incarnation=INCARNATION, booking=whole_gpu(OLD))
LATE_BOUND = bound_of(GRANT, slice_sequence=7, source=SourceName(""))
"""A binding that was sent before the broker was wiped, and landed after that."""
P1, BINDING = RequestId("p1"), subjects.binding(RequestId("p1"))


def said(instructions) -> list:
    return messages(instructions, but=(msg.Pending, msg.WaitOver))


def tick(bench, seconds: float) -> list:
    bench.now += seconds
    return bench.handle(Ticked())


def opened(empty, **changes) -> None:
    empty.add_node(snapshot("node-a", GPUS, **changes))
    empty.said.clear()


@pytest.mark.parametrize("known", ["reported", "of another life", "not pulled", "stale", "booked"])
def test_a_message_of_a_slice_that_may_be_in_use_is_left_alone(empty, known):
    """Running training would be ended by an allocator that has not read everything."""
    opened(empty)
    empty.ready(GRANT)
    tick(empty, 1.0)
    if known == "reported":
        empty.pull(snapshot("node-a", GPUS, slices=(report_of(GRANT.booking, revision=3),), generation=2))
    elif known == "of another life":
        empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), agent_run="agent-2")))
    elif known == "not pulled":
        empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), generation=9)))
    elif known == "stale":
        empty.pull(snapshot("node-a", GPUS, generation=2), stale=True)
    else:
        empty.request(ASKS)
        empty.reads(replace(GRANT, adopted=True))
    for _ in range(5):
        assert not only(msg.Revoke, tick(empty, 20.0))


@pytest.mark.parametrize("end", ["withdrawn", "still wanted"])
def test_a_binding_that_landed_after_a_wipe_does_not_stand_for_ever(empty, end):
    """Its slice is gone, and its node's journal too: it would never be reported, and its pod never released."""
    opened(empty)
    if end == "withdrawn":
        word = msg.RequestWithdrawn(revision=1, source=FOLDER, cause="pod gone", held=HELD)
        cause = "pod gone"
    else:
        word, cause = ASKS, "slice lost: it is no longer in the ledger"
    empty.observe(BINDING, LATE_BOUND)
    assert said(empty.observe(subjects.request(P1), word)) == []
    passed = [[each for each in tick(empty, after) if each == ReadAgain(Stream.BOOK)] for after in (29.0, 2.0, 60.0)]
    assert passed == [[], [ReadAgain(Stream.BOOK)], []], "once is enough"
    head = (subjects.head(NODE), empty.allocator.ctx.facts.heads[NODE])
    again = empty.read_again(Stream.BOOK, head, (BINDING, LATE_BOUND))
    assert said(again) == [msg.Released(request=P1, cause=cause)]


def test_an_entry_that_is_overwritten_on_its_way_costs_no_reading(empty):
    """The whole book would be read whenever a slice ends as it is bound."""
    opened(empty)
    empty.observe(BINDING, LATE_BOUND)
    empty.reads(msg.Revoke(revision=2, incarnation=INCARNATION, booking=GRANT.booking, cause="x"))
    assert not only(ReadAgain, tick(empty, 60.0))


@pytest.mark.parametrize("lost", ["a late grant of another life", "it failed"])
def test_a_pod_whose_slice_is_just_taken_back_is_given_no_other(empty, lost):
    """Pinned to its node, it could not use one: others would wait, or be evicted, for nothing."""
    empty.add_nodes("node-b")
    empty.request(ASKS)
    if lost == "it failed":
        report = report_of(GRANT.booking, revision=3, state="failed")
        landed = empty.add_node(snapshot("node-a", GPUS, slices=(report,)))
        landed += empty.land_all(empty.fails(GRANT, "no answer"))
    else:
        empty.reads(replace(GRANT, revision=1, incarnation=Incarnation("0")))
        landed = empty.add_nodes("node-a")
    assert [each.booking.allocation for each in only(msg.Revoke, landed)] == [OLD]
    assert all(each.adopted for each in only(msg.Grant, landed))


def test_a_slice_that_such_a_pod_was_given_elsewhere_is_waived_and_taken_back(empty):
    """It was granted before its source's message was read again: a pinned pod cannot use it."""
    opened(empty)
    empty.add_nodes("node-b")
    grant = msg.Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu("p1_new_1", node=OTHER))
    empty.reads(grant)
    why = "surplus: its pod runs where its lost slice was: node-a no longer has it"
    first = empty.request(ASKS)
    assert messages(first) == [waived("p1", why, AllocationId("p1_new_1"), alone=True)]
    (revoke,) = messages(empty.land_all(first))[1:]
    assert revoke == msg.Revoke(revision=2, incarnation=INCARNATION, booking=grant.booking, cause=why)
    landed = empty.words(empty.gone(grant))
    assert not only(msg.Bound, landed)
    assert landed[-1] == msg.Released(request=P1, cause="slice lost: node-a no longer has it")


def waived(request: str, cause: str, *allocations: AllocationId, alone: bool = False) -> msg.Waived:
    about = {"allocations": allocations, "incarnation": INCARNATION, "source": FOLDER, "alone": alone}
    return msg.Waived(request=RequestId(request), request_revision=1, cause=cause, **about)


@pytest.mark.parametrize("late", [(), (OLD,), (AllocationId("p1_old_2"),)], ids=["none", "of it", "of another"])
def test_a_pod_goes_whose_slice_is_being_taken_back_when_its_source_does_not_know(empty, late):
    """It was lost, and the broker was wiped before its source observed it: its pod would keep it from being taken back.

    A binding of before may have landed since, and does not say that its source observed it.
    """
    for each in late:
        empty.observe(BINDING, replace(LATE_BOUND, allocation=each))
    empty.request(ASKS)
    report = report_of(GRANT.booking, revision=3, state="quarantined", revoked=True)
    landed = empty.add_node(snapshot("node-a", GPUS, slices=(report,)))
    (revoke,), (order,) = only(msg.Revoke, landed), only(msg.EvictionOrdered, landed)
    assert revoke.booking.allocation == OLD
    assert order.cause == "its slice on node-a is being revoked"
    assert empty.words(empty.ends("p1", held=HELD)) == [msg.EvictionOver(request=P1)]


def test_a_pod_that_never_heard_of_its_slice_ends_after_the_slice(empty):
    """
    The broker was wiped between its binding and its source, and then it ended: neither names the slice, its agent does.

    `Released` any earlier would let what waits for it, such as a ResourceClaim, use a device that is still in use.
    """
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.ends("p1")) == []
    landed = empty.add_node(snapshot("node-a", GPUS, slices=(report_of(GRANT.booking, revision=3),)))
    (revoke,) = only(msg.Revoke, landed)
    assert not only(msg.Released, landed)
    ended = empty.words(empty.gone(GRANT, revoke.revision))
    assert ended[-1] == msg.Released(request=P1, cause="pod gone")


def test_a_pod_that_never_had_a_slice_waits_for_a_node_that_stays_away_only_for_a_while(empty):
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.ends("p1")) == []
    assert said(tick(empty, 29.0)) == []
    assert said(tick(empty, 2.0)) == [msg.Released(request=P1, cause="pod gone")]


def test_a_pod_waits_while_its_node_is_not_open(empty):
    """It runs there, perhaps: it would lose its slice for a node that is late."""
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.request(ASKS)) == []
    assert said(tick(empty, 100.0)) == []


def test_a_pod_whose_node_is_not_open_yet_is_told_if_that_lasts(empty):
    """After a wipe all pods of a fleet wait for a moment: to say so and take it back would be half of all writes."""
    assert messages(empty.request(ASKS)) == []
    assert messages(tick(empty, 29.0)) == []
    (pending,) = messages(tick(empty, 2.0))
    assert pending.message == "its slice is on node-a, which is not open yet"
    assert messages(tick(empty, 2.0)) == []


def test_a_pod_whose_ticket_cannot_be_believed_waits_and_is_told(empty):
    """It may be running on an instance of an unknown owner: ended, or given a second one."""
    ticket = ticket_name(OLD, RunId("run-1"), 1)
    opened(empty, doubtful_tickets=(ticket,))
    message = (
        f"its slice may be on node-a, which has lost its journal and cannot believe ticket {ticket}; "
        "`sluice gpus` says why: delete the pod, and it is given another"
    )
    reasons = (ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes"),)
    pending = msg.Pending(request=P1, request_revision=1, message=message, reasons=reasons)
    assert messages(empty.request(ASKS)) == [pending]
    assert said(tick(empty, 100.0)) == []
    other = replace(asked("p2"), held=msg.Held(node=NODE, allocation=AllocationId("p2_old_1")))
    cause = "slice lost: node-a no longer has it"  # nothing was published before, so it is waived first
    assert empty.asks(other) == [waived("p2", cause), msg.Released(request=RequestId("p2"), cause=cause)]


def test_the_opener_of_a_node_publishes_what_was_ready_there_and_is_not_reported(bench):
    """A new agent would call a slice that lived one that could never be made, and its pod lose its place."""
    lived = bench.bound("p1", claim(profile="3g.20gb"))
    bench.granted("p2", claim(profile="1g.5gb"))  # never ready
    of_agent = {"agent_run": RunId("agent-2"), "boot_id": "boot-2"}
    (head,) = only(msg.NodeOpened, bench.add_node(snapshot("node-a", GPUS, **of_agent)))
    assert head == msg.NodeOpened(node=NODE, incarnation=INCARNATION, lived=(lived.booking.allocation,), **of_agent)
    assert msgspec.json.decode(msgspec.json.encode(head), type=msg.NodeOpened) == head


def test_what_a_source_remembers_that_its_pod_has_was_ready_although_a_wiped_bus_tells_nothing_of_it(empty):
    """Its agent was making it again when the broker was wiped, and lost its disk then: the pod would lose its place."""
    opened(empty, slices=(report_of(GRANT.booking, revision=3, state="making"),))
    empty.request(ASKS)
    again = snapshot("node-a", GPUS, agent_run=RunId("agent-3"), boot_id="boot-3")
    (head,) = only(msg.NodeOpened, empty.add_node(again))
    assert head.lived == (OLD,)
