"""Nodes that are removed, die, or lose a GPU to another node."""

import pytest
from factories.scheduling.allocator import (
    INCARNATION,
    asked,
    claim,
    gpu_report,
    kinds,
    messages,
    news_of,
    report_of,
    snapshot,
    whole_gpu,
    working_allocator,
)
from factories.scheduling.gangs import grants, tick
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId, RunId
from sluice_allocator.core.events import EnsureAgent
from sluice_allocator.core.placement import ClusterState, find_place_on, find_reservation, place_request_of

NODE = NodeName("node-a")
GPUS = (gpu_report("node-a", 0),)
WHOLE = claim(profile="7g.40gb")
GRACE_S = 30.0
REMOVED = msg.NodeRemoved(node=NODE, cause="its Node object was deleted")


def remove(bench):
    """An operator publishes that node-a is removed; returns what follows at once."""
    return bench.land_all(bench.observe(subjects.node(NODE), REMOVED))


def test_its_head_is_closed_first_and_its_grants_some_time_later(bench):
    """A node that is taken for gone stays closed to all requests while its grants are closed."""
    grant = bench.bound("p1")
    (head,) = remove(bench)
    assert head.message == msg.NodeClosed(node=NODE, incarnation=INCARNATION, cause=REMOVED.cause)
    assert (head.subject, head.guard, head.ttl_s) == ("sluice.ledger.node-a.head", "sluice.ledger.node-a.>", 3600)
    assert bench.passes(GRACE_S - 1) == []
    closed, released = bench.passes(2)
    about = {"allocation": grant.booking.allocation, "request": grant.booking.request, "node": NODE}
    cause = "node-a was removed: its Node object was deleted"
    assert closed.message == msg.Closed(revision=1, **about, cause=cause, removed=True, incarnation=INCARNATION)
    assert closed.ttl_s == 3600
    assert released.message == msg.Released(request=grant.booking.request, cause=f"slice lost: {cause}")


def test_a_node_that_another_allocator_has_opened_since_has_all_of_its_time_again(bench):
    """That one has observed its agent and grants there; a late reader would grant the same places a second time."""
    before = bench.bound("p1")
    remove(bench)
    bench.passes(GRACE_S + 1)
    bench.land_all(bench.request(asked("p2")))
    head = msg.NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="boot-2", agent_run=RunId("r2"), adopted=())
    assert bench.land_all(bench.observe(subjects.head(NODE), head)) == []
    booking = replace(before.booking, request=RequestId("p2"), allocation=AllocationId("p2_other_1"))
    written = bench.land_all(bench.reads(replace(before, booking=booking))) + bench.passes(GRACE_S - 1)
    assert set(kinds(written)) <= {msg.Pending, msg.WaitOver}
    assert msg.NodeClosed in kinds(bench.passes(2))
    assert msg.Closed not in kinds(bench.passes(GRACE_S - 1))
    assert msg.Closed in kinds(bench.passes(2))


def test_its_time_restarts_when_the_bus_is_read_again(bench):
    """What its agent has said meanwhile may have been missed."""
    grant = bench.bound("p1")
    remove(bench)
    bench.passes(GRACE_S - 1)
    bench.read_all((subjects.ledger(NODE, grant.booking.allocation), grant), (subjects.node(NODE), REMOVED))
    assert bench.passes(GRACE_S - 1) == []
    assert msg.Closed in kinds(bench.passes(2))


def test_what_its_agent_still_has_is_entered_before_the_node_is_used(bench):
    """Its place would be granted again while its processes run."""
    grant = bench.bound("p1", claim(profile="7g.40gb"))
    remove(bench)
    bench.passes(GRACE_S + 1)
    bench.request(asked("p2"))
    there = (report_of(grant.booking),)
    written = bench.add_node(snapshot("node-a", GPUS, slices=there, agent_run=RunId("agent-2"), generation=2))
    again, opened, revoke = messages(written, but=msg.Pending)
    assert [type(again), type(opened), type(revoke)] == [msg.Grant, msg.NodeOpened, msg.Revoke]
    assert (again.adopted, opened.adopted) == (True, (grant.booking.allocation,))
    assert revoke.cause.startswith("released: slice lost")


def test_a_grant_does_not_follow_a_head_that_is_being_closed(bench):
    """Its agent publishes before the write is answered: the node looks open, and the grant would land after the end."""
    (closing,) = [w for w in bench.observe(subjects.node(NODE), REMOVED) if isinstance(w, Write)]
    bench.observe(subjects.node(NODE), news_of(snapshot("node-a", ())))
    bench.land_all(bench.request(asked("p2")))
    landed = kinds(bench.land_all([closing]))
    assert landed.index(msg.NodeOpened) < landed.index(msg.Grant)


def test_a_head_that_another_closed_is_opened_only_on_what_was_read_since(bench):
    """What is known of its node is of before the removal: what was made there since would be lost."""
    head = msg.NodeClosed(node=NODE, incarnation=INCARNATION, cause=REMOVED.cause)
    assert bench.observe(subjects.head(NODE), head) == []
    assert bench.handle(Ticked()) == [EnsureAgent(NODE), ReadAgain(Stream.STATE)]
    assert bench.handle(Ticked()) == []
    seen = snapshot("node-a", GPUS, agent_run=RunId("agent-2"))
    inventory = msg.NodeInventory(snapshot=seen, stale=False)
    state = (subjects.node(NODE), news_of(seen)), (subjects.inventory(NODE), inventory)
    (opened,) = bench.read_again(Stream.STATE, *state)
    assert opened.message == msg.NodeOpened(
        node=NODE, incarnation=INCARNATION, boot_id="boot-1", agent_run=RunId("agent-2"), adopted=()
    )


def test_a_pod_that_was_there_is_released_when_the_broker_was_wiped(bench):
    """Nothing but its source knows where it was. It is pinned there, and a slice elsewhere would serve no pod."""
    grant = bench.bound("p1")
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_nodes("node-b")
    held = msg.Held(node=NODE, allocation=grant.booking.allocation)
    bench.asks(replace(asked("p1"), held=held))
    remove(bench)
    assert messages(bench.passes(GRACE_S - 1), but=msg.Pending) == []
    closed, waived, released = (w for w in bench.passes(2) if not isinstance(w.message, msg.Pending | msg.WaitOver))
    assert (closed.message.allocation, closed.message.removed) == (held.allocation, True)
    assert isinstance(waived.message, msg.Waived), "over nothing the last word could land in another life of the bus"
    assert isinstance(released.message, msg.Released)
    assert released.expected > 0


def test_a_slice_that_its_pod_does_not_remember_is_surplus(bench):
    """Two slices of one pod come back with their nodes; it runs on one of them, which may be ready later."""
    grant = bench.granted("p1")
    other = replace(grant, booking=replace(grant.booking, allocation="p1_r9_1"))
    held = msg.Held(node=NODE, allocation=grant.booking.allocation)
    bench.asks(replace(asked("p1"), revision=2, held=held))
    waived, revoke = bench.words(bench.reads(other)) + bench.words(bench.ready(other))
    assert (type(waived), type(revoke)) == (msg.Waived, msg.Revoke)
    assert revoke.cause.startswith("surplus")


def told(bench, *, stale):
    """What the inventory publishes of node-a, and all that follows until nothing does; without reasons to wait."""
    said = bench.pull(snapshot("node-a", GPUS), stale=stale, stale_message="UNAVAILABLE" if stale else "")
    return bench.words(said, but=(msg.Pending, msg.WaitOver))


def given_up(grant):
    """What is published when an unbound grant is revoked because its node does not answer."""
    booking = grant.booking
    cause = "its slice was never reported, and its node does not answer: UNAVAILABLE"
    waived = msg.Waived(
        request=booking.request,
        request_revision=booking.request_revision,
        allocations=(booking.allocation,),
        incarnation=INCARNATION,
        cause=cause,
        source=booking.source,
        alone=True,
    )
    return [waived, msg.Revoke(revision=2, incarnation=INCARNATION, booking=booking, cause=cause)]


def test_a_place_on_a_dead_node_stays_booked_until_its_agent_has_published(bench):
    """What was ordered there may have been made: it is given again when the agent says that it is gone."""
    grant = bench.granted("p1", WHOLE)
    assert told(bench, stale=True) == given_up(grant)
    assert told(bench, stale=False) == []
    assert kinds(bench.words(bench.gone(grant), but=msg.WaitOver)) == [msg.Closed, msg.Grant]


def test_a_place_on_a_node_that_is_silent_after_a_restart_is_given_up_as_well(bench):
    """That its new agent is unknown is shown first; it hid that it does not answer, and its pod waited for ever."""
    grant = bench.granted("p1", WHOLE)
    restarted = replace(news_of(snapshot("node-a", ())), agent_run=RunId("run-2"))
    assert not bench.land_all(bench.observe(subjects.node(NODE), restarted))
    assert told(bench, stale=True) == given_up(grant)


@pytest.mark.parametrize("mig", [True, False])
def test_a_gpu_that_was_moved_is_given_when_its_former_node_is_given_up(mig):
    """Else a card that was saved from a broken machine is idle until the allocator is restarted."""
    bench = working_allocator()
    whole = claim(profile="7g.40gb") if mig else claim(profile=None)
    card = gpu_report("old", 0, mig=mig)
    bench.add_node(snapshot("old", (card,)))
    grant = bench.bound("p1", whole)
    bench.add_node(snapshot("new", (card,)))  # its machine is dead, and the card in another one
    assert not grants(bench.asks(asked("p2", whole)))  # what is booked on it may still be there
    said = bench.words(bench.observe(subjects.node("old"), msg.NodeRemoved(node="old", cause="it burnt")))
    said += tick(bench, 2.0, times=60)
    assert bench.allocator.ctx.cluster.booking(grant.booking.allocation) is None  # closed with its node
    assert grants(said)["p2"].booking.node == "new"


def test_what_is_booked_on_a_moved_gpu_counts_in_a_trial_of_its_new_node():
    fleet = ClusterState()
    fleet.show(snapshot("node-a", GPUS))
    fleet.set_usable("node-a")
    fleet.book(whole_gpu("p1_r1_1"))
    fleet.show(snapshot("node-a", ()))
    there = snapshot("node-b", GPUS)
    fleet.show(there)
    fleet.set_usable("node-b")
    asking = place_request_of(asked("big", WHOLE))
    assert find_place_on(fleet, asking, "node-b", frozenset()) is None
    promise = find_reservation(fleet, asking, shown={"node-b": there}, wait_for=lambda a: 1, open_to=lambda m: True)
    assert promise.after == ("p1_r1_1",)
    assert find_place_on(fleet.alone(there), asking, "node-b", frozenset()) is None


def test_a_moved_gpu_may_be_promised():
    bench = working_allocator()
    card = gpu_report("old", 0)
    bench.add_node(snapshot("old", (card,)))
    grant = bench.bound("p1", WHOLE)
    bench.add_node(snapshot("old", (), generation=2))  # the card is out of it
    bench.add_node(snapshot("new", (card,)))
    said = bench.asks(asked("p2", WHOLE)) + tick(bench, 30.0, times=20)
    assert not grants(said) or grants(said)["p2"].after == (grant.booking.allocation,)
