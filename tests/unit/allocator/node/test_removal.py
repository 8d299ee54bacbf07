"""A node that is removed: what is closed, when, and what comes first when its agent is there again (PROTOCOL §6)."""

import msgspec
import pytest
from factories.scheduling.allocator import INCARNATION, asked, claim, gpu_report, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write, WriteRefused
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId, RunId
from sluice.contracts.messages import (
    Closed,
    Grant,
    Held,
    NodeChanged,
    NodeClosed,
    NodeInventory,
    NodeOpened,
    NodeRemoved,
    Pending,
    Released,
    RequestWithdrawn,
    Revoke,
    SliceReport,
    WaitOver,
    Waived,
)
from sluice_allocator.core.events import EnsureAgent

NODE = NodeName("node-a")
GRACE_S = 30.0
REMOVED = NodeRemoved(node=NODE, cause="its Node object was deleted")


def remove(bench):
    """Somebody says that node-a is not there any more; returns what follows at once."""
    return bench.land_all(bench.observe(subjects.node(NODE), REMOVED))


def wait(bench, seconds: float):
    bench.now += seconds
    return bench.land_all(bench.handle(Ticked()))


def kinds(writes) -> list:
    return [type(write.message) for write in writes]


def test_its_head_is_closed_first_and_its_grants_some_time_later(bench):
    """A node that is only looked at as gone must not be open for anybody while its grants go."""
    grant = bench.bound("p1")
    (head,) = remove(bench)
    assert head.message == NodeClosed(node=NODE, incarnation=INCARNATION, cause=REMOVED.cause)
    assert (head.subject, head.guard, head.ttl_s) == ("sluice.ledger.node-a.head", "sluice.ledger.node-a.>", 3600)
    assert wait(bench, GRACE_S - 1) == []
    closed, released = wait(bench, 2)
    cause = "node-a was removed: its Node object was deleted"
    assert closed.message == Closed(
        revision=1,
        allocation=grant.booking.allocation,
        request=grant.booking.request,
        node=NODE,
        cause=cause,
        removed=True,
        incarnation=INCARNATION,
    )
    assert closed.ttl_s == 3600
    assert released.message == Released(request=grant.booking.request, cause=f"slice lost: {cause}")


def test_a_node_that_another_allocator_has_opened_since_has_all_of_its_time_again(bench):
    """That one has heard its agent and grants there; who reads late would give the same places away a second time."""
    before = bench.bound("p1")
    remove(bench)
    wait(bench, GRACE_S + 1)
    bench.land_all(bench.request(asked("p2")))
    head = NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="boot-2", agent_run=RunId("r2"), adopted=())
    assert bench.land_all(bench.observe(subjects.head(NODE), head)) == []
    booking = msgspec.structs.replace(before.booking, request=RequestId("p2"), allocation=AllocationId("p2_other_1"))
    theirs = msgspec.structs.replace(before, booking=booking)
    written = bench.land_all(bench.observe(subjects.ledger(NODE, booking.allocation), theirs))
    written += wait(bench, GRACE_S - 1)
    assert set(kinds(written)) <= {Pending, WaitOver}
    assert NodeClosed in kinds(wait(bench, 2))
    assert Closed not in kinds(wait(bench, GRACE_S - 1))
    assert Closed in kinds(wait(bench, 2))


def test_its_time_begins_anew_when_the_bus_is_read_again(bench):
    """What its agent has said meanwhile may have been missed."""
    grant = bench.bound("p1")
    remove(bench)
    wait(bench, GRACE_S - 1)
    bench.read_all((subjects.ledger(NODE, grant.booking.allocation), grant), (subjects.node(NODE), REMOVED))
    assert wait(bench, GRACE_S - 1) == []
    assert Closed in kinds(wait(bench, 2))


def test_what_its_agent_still_has_is_entered_before_the_node_is_used(bench):
    """Its place would be given to somebody else while its processes run."""
    grant = bench.bound("p1", claim(profile="7g.40gb"))
    remove(bench)
    wait(bench, GRACE_S + 1)
    bench.request(asked("p2"))
    report = SliceReport(booking=grant.booking, revision=1, state="ready", revoked=False)
    gpus = (gpu_report("node-a", 0),)
    written = bench.add_node(snapshot("node-a", gpus, slices=(report,), agent_run=RunId("agent-2"), generation=2))
    said = [w.message for w in written if not isinstance(w.message, Pending)]
    assert [type(message) for message in said] == [Grant, NodeOpened, Revoke]
    assert said[0].adopted
    assert said[1].adopted == (grant.booking.allocation,)
    assert said[2].cause.startswith("released: slice lost")


def test_a_grant_does_not_follow_a_head_that_is_being_closed(bench):
    """Its agent speaks before the write is answered: the node looks open, and the grant would land behind the end."""
    news = NodeChanged(node=NODE, endpoint="e", boot_id="boot-1", agent_run=RunId("agent-1"), generation=1, gpus=())
    (closing,) = [w for w in bench.observe(subjects.node(NODE), REMOVED) if isinstance(w, Write)]
    bench.observe(subjects.node(NODE), news)
    bench.land_all(bench.request(asked("p2")))
    followed = bench.land_all([closing])
    landed = kinds(followed)
    assert landed.index(NodeOpened) < landed.index(Grant)


def test_a_head_that_another_closed_is_opened_only_on_what_was_read_since(bench):
    """What is known of its node is of before the removal: what was made there since would be lost."""
    head = NodeClosed(node=NODE, incarnation=INCARNATION, cause=REMOVED.cause)
    assert bench.observe(subjects.head(NODE), head) == []
    assert bench.handle(Ticked()) == [EnsureAgent(NODE), ReadAgain(Stream.STATE)]
    assert bench.handle(Ticked()) == []
    seen = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("agent-2"))
    news = NodeChanged(node=NODE, endpoint="e", boot_id="boot-1", agent_run=RunId("agent-2"), generation=1, gpus=())
    bench.handle(ReadingStarted(Stream.STATE, INCARNATION))
    bench.observe(subjects.node(NODE), news)
    bench.observe(subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False))
    (opened,) = bench.handle(ReadingCaughtUp(Stream.STATE))
    assert opened.message == NodeOpened(
        node=NODE, incarnation=INCARNATION, boot_id="boot-1", agent_run=RunId("agent-2"), adopted=()
    )


def test_what_was_entered_again_meanwhile_is_not_closed(bench):
    """Another allocator has opened the node: the guard refuses what this one had decided before."""
    grant = bench.bound("p1")
    remove(bench)
    bench.now += GRACE_S + 1
    (closing,) = [w for w in bench.handle(Ticked()) if isinstance(w, Write)]
    head = NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="boot-1", agent_run=RunId("agent-2"))
    bench.observe(subjects.head(NODE), head)
    refused = bench.handle(WriteRefused(closing.operation, 1_000_000))
    assert [w for w in refused if isinstance(w, Write) and isinstance(w.message, Closed)] == []
    assert closing.message.allocation == grant.booking.allocation


def test_a_pod_that_was_there_is_released_when_the_broker_was_wiped(bench):
    """Nothing but its source knows where it was. It is pinned there, and a slice elsewhere would serve no pod."""
    grant = bench.bound("p1")
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    held = Held(node=NODE, allocation=grant.booking.allocation)
    bench.land_all(bench.request(msgspec.structs.replace(asked("p1"), held=held)))
    remove(bench)
    assert [kind for kind in kinds(wait(bench, GRACE_S - 1)) if kind is not Pending] == []
    closed, waived, released = (w for w in wait(bench, 2) if not isinstance(w.message, WaitOver))
    assert (closed.message.allocation, closed.message.removed) == (held.allocation, True)
    assert isinstance(waived.message, Waived), "over nothing the last word could land in another life of the bus"
    assert isinstance(released.message, Released)
    assert released.expected > 0


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_pod_is_not_released_by_who_has_not_heard_that_its_node_is_back(bench, withdrawn):
    """The broker was wiped, so nothing on the bus but the node's ledger shows it: the pod would be ended."""
    grant = bench.bound("p1")
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    held = Held(node=NODE, allocation=grant.booking.allocation)
    word = msgspec.structs.replace(asked("p1"), held=held)
    if withdrawn:
        word = RequestWithdrawn(revision=1, source=word.source, cause="pod gone", held=held)
    bench.land_all(bench.observe(subjects.request(RequestId("p1")), word))
    remove(bench)
    bench.now += GRACE_S + 1
    written = [w for w in bench.handle(Ticked()) if isinstance(w, Write) and not isinstance(w.message, Pending)]
    (closing,) = written
    assert closing.message.allocation == held.allocation
    after = bench.handle(WriteRefused(closing.operation, 1_000_000))  # another allocator has entered it there
    assert [w for w in after if isinstance(w, Write) and not isinstance(w.message, Pending)] == []


def test_what_went_with_its_node_in_another_life_of_the_bus_is_there_when_its_agent_says_so(bench):
    """The message lands late, when no allocator knows that the node is gone: a pod that runs there would be ended."""
    grant = bench.bound("p1")
    allocation = grant.booking.allocation
    late = Closed(revision=1, allocation=allocation, request="p1", node=NODE, cause="", removed=True, incarnation="old")
    held = Held(node=NODE, allocation=allocation)
    written = bench.read_all(
        (subjects.ledger(NODE, allocation), late),
        (subjects.request(RequestId("p1")), msgspec.structs.replace(asked("p1"), held=held)),
        incarnation=Incarnation("900000"),
    )
    assert kinds(w for w in written if isinstance(w, Write)) == [Pending]
    report = SliceReport(booking=grant.booking, revision=1, state="ready", revoked=False)
    written = bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))
    assert [kind for kind in kinds(written) if kind is not Pending] == [Grant, NodeOpened]


def test_a_slice_that_its_pod_does_not_remember_is_surplus(bench):
    """Two slices of one pod come back with their nodes; it runs on one of them, which may be ready later."""
    grant = bench.granted("p1")
    other = msgspec.structs.replace(grant.booking, allocation="p1_r9_1")
    held = Held(node=NODE, allocation=grant.booking.allocation)
    bench.land_all(bench.request(msgspec.structs.replace(asked("p1"), revision=2, held=held)))
    entry = Grant(revision=1, incarnation=INCARNATION, booking=other)
    written = bench.land_all(bench.observe(subjects.ledger(NODE, other.allocation), entry))
    written += bench.land_all(bench.ready(entry))
    assert kinds(written) == [Revoke]
    assert written[0].message.cause.startswith("surplus")
