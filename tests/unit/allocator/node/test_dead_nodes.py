"""A node whose agent does not answer any more: who waits for a slice there, and who has one."""

from factories.scheduling.allocator import INCARNATION, claim, gpu_report, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Grant, NodeInventory, Pending, Revoke, SliceGone, WaitOver, Waived

NODE, OTHER = NodeName("node-a"), NodeName("node-b")
WHY = "no usable answer for 30 s: UNAVAILABLE"
CAUSE = f"its slice was never reported, and its node does not answer: {WHY}"


def told(bench, *, stale):
    """What the inventory says of node-a, and all that follows until nothing does; without who waits."""
    seen = snapshot("node-a", (gpu_report("node-a", 0),))
    known = NodeInventory(snapshot=seen, stale=stale, stale_message=WHY if stale else "")
    landed = bench.land_all(bench.observe(subjects.inventory(NODE), known))
    return [each.message for each in landed if not isinstance(each.message, (Pending, WaitOver))]


def waiver(grant):
    """What is published before an unbound grant is revoked."""
    booking = grant.booking
    return Waived(
        request=booking.request,
        request_revision=booking.request_revision,
        allocations=(booking.allocation,),
        incarnation=INCARNATION,
        cause=CAUSE,
        source=booking.source,
        alone=True,
    )


def test_a_pod_does_not_wait_for_a_node_that_died_before_its_slice_was_made(bench):
    """Another node is free: it has its slice there, and whatever was made on the dead one is taken back."""
    grant = bench.granted("p1")
    assert grant.booking.node == NODE
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    waived, revoked, again = told(bench, stale=True)
    assert waived == waiver(grant)
    assert revoked == Revoke(revision=2, incarnation=INCARNATION, booking=grant.booking, cause=CAUSE)
    assert isinstance(again, Grant)
    assert (again.booking.node, again.booking.request) == (OTHER, "p1")


def test_a_place_on_a_dead_node_is_nobody_elses_until_its_agent_has_spoken(bench):
    """What was ordered there may have been made: it is given again when the agent says that it is gone."""
    grant = bench.granted("p1", claim(profile="7g.40gb"))
    assert told(bench, stale=True) == [
        waiver(grant),
        Revoke(revision=2, incarnation=INCARNATION, booking=grant.booking, cause=CAUSE),
    ]
    assert told(bench, stale=False) == []
    gone = SliceGone(allocation=grant.booking.allocation, request=grant.booking.request, revision=2, cause="never made")
    landed = bench.land_all(bench.observe(subjects.slice_(NODE, grant.booking.allocation), gone))
    said = [each.message for each in landed if not isinstance(each.message, WaitOver)]
    assert [type(message).__name__ for message in said] == ["Closed", "Grant"]
