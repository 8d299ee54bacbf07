"""What is left of slices that are nowhere any more, because broker and disk were lost: words, memories, tickets."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    asked,
    claim,
    gpu_report,
    news_of,
    ready_of,
    snapshot,
    whole_gpu,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId, RunId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.contracts.ticket_paths import ticket_name

NODE, OTHER = NodeName("node-a"), NodeName("node-b")
OLD = AllocationId("p1_old_1")
HELD = msg.Held(node=NODE, allocation=OLD)


def booking(allocation: str = OLD, *, node: NodeName = NODE) -> msg.Booking:
    return whole_gpu(allocation, node=node)


def old_word():
    return ready_of(msg.Grant(revision=3, incarnation=INCARNATION, booking=booking()))


def messages(instructions) -> list:
    return [each.message for each in instructions if isinstance(each, Write)]


def said(instructions) -> list:
    return [each for each in messages(instructions) if not isinstance(each, (msg.Pending, msg.WaitOver))]


def tick(bench, seconds: float) -> list:
    bench.now += seconds
    return bench.handle(Ticked())


def opened(empty, **changes) -> None:
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), **changes))
    empty.said.clear()


def _reported(empty):
    report = msg.SliceReport(booking=booking(), revision=3, state="ready", revoked=False)
    seen = snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,), generation=2)
    empty.pull(seen)


def _another_life(empty):
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), agent_run="agent-2")))


def _not_pulled(empty):
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), generation=9)))


def _stale(empty):
    seen = snapshot("node-a", (gpu_report("node-a", 0),), generation=2)
    empty.pull(seen, stale=True)


def _booked(empty):
    empty.request(replace(asked("p1"), held=HELD))
    grant = msg.Grant(revision=3, incarnation=INCARNATION, booking=booking(), adopted=True)
    empty.observe(subjects.ledger(NODE, OLD), grant)


@pytest.mark.parametrize("known", [_reported, _another_life, _not_pulled, _stale, _booked])
def test_a_word_of_a_slice_that_somebody_may_have_is_left_alone(empty, known):
    """Running training would be ended by an allocator that has not heard everything."""
    opened(empty)
    empty.observe(subjects.slice_(NODE, OLD), old_word())
    tick(empty, 1.0)
    known(empty)
    for _ in range(5):
        assert not any(isinstance(each, msg.Revoke) for each in messages(tick(empty, 20.0)))


def late_bound():
    """A binding that was sent before the broker was wiped, and landed after that."""
    word = old_word()
    return msg.Bound(
        request=RequestId("p1"),
        request_revision=1,
        allocation=OLD,
        node=NODE,
        revision=1,
        ticket=word.ticket,
        containers=word.containers,
        slice_sequence=7,
    )


@pytest.mark.parametrize("end", ["withdrawn", "still wanted"])
def test_a_binding_that_landed_after_a_wipe_does_not_stand_for_ever(empty, end):
    """Its slice is gone, and its node's journal too: it would never be reported, and its pod never released."""
    opened(empty)
    if end == "withdrawn":
        word = msg.RequestWithdrawn(revision=1, source=FOLDER, cause="pod gone", held=HELD)
        cause = "pod gone"
    else:
        word, cause = replace(asked("p1"), held=HELD), "slice lost: it is no longer in the ledger"
    binding = subjects.binding(RequestId("p1"))
    empty.observe(binding, late_bound())
    request = subjects.request(RequestId("p1"))
    assert said(empty.observe(request, word)) == []
    passed = [[each for each in tick(empty, after) if each == ReadAgain(Stream.BOOK)] for after in (29.0, 2.0, 60.0)]
    assert passed == [[], [ReadAgain(Stream.BOOK)], []], "once is enough"
    head = empty.allocator.ctx.facts.heads[NODE]
    empty.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    empty.observe(subjects.head(NODE), head)
    empty.observe(binding, late_bound())
    assert said(empty.handle(ReadingCaughtUp(Stream.BOOK))) == [msg.Released(request=RequestId("p1"), cause=cause)]


def test_an_entry_that_is_overwritten_on_its_way_costs_no_reading(empty):
    """The whole book would be read whenever a slice ends as it is bound."""
    opened(empty)
    empty.observe(subjects.binding(RequestId("p1")), late_bound())
    empty.observe(
        subjects.ledger(NODE, OLD), msg.Revoke(revision=2, incarnation=INCARNATION, booking=booking(), cause="x")
    )
    assert not any(isinstance(each, ReadAgain) for each in tick(empty, 60.0))


def _of_another_life(empty) -> list:
    """Its grant has landed late, and its node is opened without it."""
    empty.observe(subjects.ledger(NODE, OLD), msg.Grant(revision=1, incarnation=Incarnation("0"), booking=booking()))
    return empty.add_nodes("node-a")


def _failed(empty) -> list:
    """It is there, and its agent says that it cannot be used."""
    report = msg.SliceReport(booking=booking(), revision=3, state="failed", revoked=False)
    written = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))
    word = msg.SliceFailed(allocation=OLD, request=RequestId("p1"), revision=3, error="Unknown", message="no answer")
    return written + empty.land_all(empty.observe(subjects.slice_(NODE, OLD), word))


@pytest.mark.parametrize("lost", [_of_another_life, _failed])
def test_a_pod_whose_slice_is_just_taken_back_is_given_no_other(empty, lost):
    """Pinned to its node, it could not use one: others would wait, or be evicted, for nothing."""
    empty.add_nodes("node-b")
    empty.request(replace(asked("p1"), held=HELD))

    landed = [write.message for write in lost(empty)]

    assert [each.booking.allocation for each in landed if isinstance(each, msg.Revoke)] == [OLD]
    assert not [each for each in landed if isinstance(each, msg.Grant) and not each.adopted]


def told_of_its_loss(request: str) -> list:
    """What a pod with a vanished slice reads: nothing was published before, so it is waived first."""
    cause = "slice lost: node-a no longer has it"
    waived = msg.Waived(
        request=RequestId(request),
        request_revision=1,
        allocations=(),
        cause=cause,
        incarnation=INCARNATION,
        source=FOLDER,
    )
    return [waived, msg.Released(request=RequestId(request), cause=cause)]


def test_a_slice_that_such_a_pod_was_given_elsewhere_is_waived_and_taken_back(empty):
    """It was granted before its source's word was read again: a pinned pod cannot use it."""
    opened(empty)
    empty.add_nodes("node-b")
    grant = msg.Grant(revision=1, incarnation=INCARNATION, booking=booking("p1_new_1", node=OTHER))
    empty.observe(subjects.ledger(OTHER, AllocationId("p1_new_1")), grant)
    why = "surplus: its pod runs where its lost slice was: node-a no longer has it"
    (write,) = [each for each in empty.request(replace(asked("p1"), held=HELD)) if isinstance(each, Write)]
    assert write.message == msg.Waived(
        request=RequestId("p1"),
        request_revision=1,
        allocations=(AllocationId("p1_new_1"),),
        cause=why,
        incarnation=INCARNATION,
        source=FOLDER,
        alone=True,
    )
    (revoke,) = empty.land_all([write])[1:]
    assert revoke.message == msg.Revoke(revision=2, incarnation=INCARNATION, booking=grant.booking, cause=why)
    landed = [each.message for each in empty.land_all(empty.gone(grant))]
    assert not any(isinstance(each, msg.Bound) for each in landed)
    assert landed[-1] == msg.Released(request=RequestId("p1"), cause="slice lost: node-a no longer has it")


@pytest.mark.parametrize("late", [(), (OLD,), (AllocationId("p1_old_2"),)], ids=["none", "of it", "of another"])
def test_a_pod_goes_whose_slice_is_being_taken_back_when_its_source_does_not_know(empty, late):
    """It was lost, and the broker was wiped before its source heard so: its pod would keep it from being taken back.

    A binding of before may have landed since, and does not say that its source was told.
    """
    for each in late:
        empty.observe(subjects.binding(RequestId("p1")), replace(late_bound(), allocation=each))
    empty.request(replace(asked("p1"), held=HELD))
    report = msg.SliceReport(booking=booking(), revision=3, state="quarantined", revoked=True)
    landed = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))
    (revoke,) = [each.message for each in landed if isinstance(each.message, msg.Revoke)]
    (order,) = [each.message for each in landed if isinstance(each.message, msg.EvictionOrdered)]
    assert revoke.booking.allocation == OLD
    assert order.cause == "its slice on node-a is being revoked"

    later = [each.message for each in empty.land_all(empty.ends("p1", held=HELD))]
    assert later == [msg.EvictionOver(request=RequestId("p1"))]


def test_a_pod_that_never_heard_of_its_slice_ends_after_the_slice(empty):
    """
    The broker was wiped between its binding and its source, and then it ended: neither names the slice, its agent does.

    `Released` any earlier would let what waits for it, such as a ResourceClaim, use a device that is still in use.
    """
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.ends("p1")) == []

    report = msg.SliceReport(booking=booking(), revision=3, state="ready", revoked=False)
    landed = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))
    (revoke,) = [each.message for each in landed if isinstance(each.message, msg.Revoke)]
    assert not [each for each in landed if isinstance(each.message, msg.Released)]
    lost = msg.Grant(revision=revoke.revision, incarnation=INCARNATION, booking=revoke.booking)
    ended = [each.message for each in empty.land_all(empty.gone(lost, revoke.revision))]
    assert ended[-1] == msg.Released(request=RequestId("p1"), cause="pod gone")


def test_a_pod_that_never_had_a_slice_waits_for_a_node_that_stays_away_only_for_a_while(empty):
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.ends("p1")) == []
    assert said(tick(empty, 29.0)) == []
    assert said(tick(empty, 2.0)) == [msg.Released(request=RequestId("p1"), cause="pod gone")]


def test_a_pod_waits_while_its_node_is_not_open(empty):
    """It runs there, perhaps: it would lose its slice for a node that is late."""
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    assert said(empty.request(replace(asked("p1"), held=HELD))) == []
    assert said(tick(empty, 100.0)) == []


def test_a_pod_whose_node_is_not_open_yet_is_told_if_that_lasts(empty):
    """After a wipe all pods of a fleet wait for a moment: to say so and take it back would be half of all writes."""
    assert messages(empty.request(replace(asked("p1"), held=HELD))) == []
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
    pending = msg.Pending(
        request=RequestId("p1"),
        request_revision=1,
        message=message,
        reasons=(ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes"),),
    )
    assert messages(empty.request(replace(asked("p1"), held=HELD))) == [pending]
    assert said(tick(empty, 100.0)) == []
    other = replace(asked("p2"), held=msg.Held(node=NODE, allocation=AllocationId("p2_old_1")))
    assert [each.message for each in empty.land_all(empty.request(other))] == told_of_its_loss("p2")


def test_whoever_opens_a_node_says_what_was_ready_there_and_is_not_reported(bench):
    """A new agent would call a slice that lived one that could never be made, and its pod lose its place."""
    lived = bench.bound("p1", claim(profile="3g.20gb"))
    bench.granted("p2", claim(profile="1g.5gb"))  # never ready
    again = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("agent-2"), boot_id="boot-2")
    (head,) = [each.message for each in bench.add_node(again) if isinstance(each.message, msg.NodeOpened)]
    assert head == msg.NodeOpened(
        node=NODE,
        incarnation=INCARNATION,
        boot_id="boot-2",
        agent_run=RunId("agent-2"),
        lived=(lived.booking.allocation,),
    )
    assert msgspec.json.decode(msgspec.json.encode(head), type=msg.NodeOpened) == head


def test_what_a_source_remembers_that_its_pod_has_was_ready_although_a_wiped_bus_tells_nothing_of_it(empty):
    """Its agent was making it again when the broker was wiped, and lost its disk then: the pod would lose its place."""
    report = msg.SliceReport(booking=booking(), revision=3, state="making", revoked=False)
    opened(empty, slices=(report,))
    empty.request(replace(asked("p1"), held=HELD))
    again = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("agent-3"), boot_id="boot-3")
    (head,) = [each.message for each in empty.add_node(again) if isinstance(each.message, msg.NodeOpened)]
    assert head.lived == (OLD,)
