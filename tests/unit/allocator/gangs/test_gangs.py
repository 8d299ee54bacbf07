"""Pods that are granted together or not at all: what each of them gets, and gives back."""

import pytest
from factories.scheduling.allocator import asked, kinds, only
from factories.scheduling.gangs import WHOLE, bound, fleet, grant_of, grants, member, tick, waits
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId, RunId, SourceName
from sluice.contracts.reasons import ReasonCount, WaitReason


def test_the_last_pod_brings_places_for_all():
    """The whole exchange of a group of two: two grants, and no pod is bound before both slices are there."""
    bench = fleet(2)
    assert kinds(bench.asks(member("a", WHOLE))) == [msg.Pending]
    granted = grants(bench.asks(member("b", WHOLE)))
    assert sorted(granted) == ["a", "b"]
    assert granted["a"].booking.node != granted["b"].booking.node
    assert not bound(bench.words(bench.ready(granted["a"])))
    assert sorted(bound(bench.words(bench.ready(granted["b"])))) == ["a", "b"]


def test_a_job_that_fits_only_in_part_gets_nothing_and_is_told_whose_place_is_missing():
    """All or none: the places of the first pods are free for others again, at once."""
    bench = fleet(2)
    said = bench.asks(*(member(name, WHOLE, size=3) for name in "abc"))
    assert not grants(said)
    last = waits(tick(bench, 1))["c"]  # it brought the search, whose outcome its first message could not know
    for why in (waits(said)["a"], last):
        assert [each.reason for each in why.reasons][:1] == [WaitReason.GROUP_NOT_FIT]
        assert "2 of 3 pods of group train have a place; the 3rd (c): " in why.message
    assert sorted(grants(bench.asks(asked("x", WHOLE), asked("y", WHOLE)))) == ["x", "y"]


def test_a_job_that_even_an_idle_fleet_could_not_hold_is_told_so():
    """It waits, for nodes may be added; but its reason says why a free fleet does not serve it."""
    bench = fleet(2)
    said = bench.asks(*(member(name, WHOLE, size=3) for name in "abc"))
    why = "even an empty fleet could not hold it: it takes 3 GPUs at least, and 2 could serve it"
    assert why in waits(said)["a"].message
    crowded = fleet(2)
    said = crowded.asks(asked("x", WHOLE), member("a", WHOLE), member("b", WHOLE))
    assert "empty fleet" not in waits(said)["a"].message


def test_a_job_that_is_more_than_its_quota_is_told_what_both_are():
    """With "has 2" of a namespace in which nothing runs, a user who looks for the two finds none."""
    bench = fleet(3)
    bench.limit(gpus=2)
    message = waits(bench.asks(*(member(name, WHOLE, size=3) for name in "abc")))["a"].message
    assert "may have 2 devices and has 2; this one asks for 1" in message
    assert message.endswith(
        " (including the places found for the others); they can run together only if the quota is raised: "
        "namespace default may have 2 devices in all, and they take 3 at least"
    )

    within = fleet(3)
    within.limit(gpus=2)
    said = within.asks(asked("x"), member("a", WHOLE), member("b", WHOLE))
    assert "when the quota is raised" not in waits(said)["a"].message


def test_two_allocators_that_see_a_job_differently_do_not_answer_each_other():
    """Each would say its own reason over the other's, as fast as the bus allows, for as long as they differ."""
    bench = fleet(1)
    bench.asks(member("a", WHOLE), member("b", WHOLE))
    reasons = (ReasonCount(reason=WaitReason.GROUP_INCOMPLETE, count=2, of="pods of group train"),)
    theirs = msg.Pending(request=RequestId("a"), request_revision=1, message="searching for places", reasons=reasons)
    address = subjects.waiting(RequestId("a"))
    assert [bench.words(bench.observe(address, theirs)) for _ in range(3)] == [[], [], []]
    assert waits(tick(bench, 6.0))["a"].reasons[0].reason is WaitReason.GROUP_NOT_FIT


def test_pods_that_disagree_on_the_size_are_told_who_says_what():
    """A typing error in one manifest is found by reading, not by waiting."""
    bench = fleet(2)
    said = bench.asks(member("a", size=2), member("b", size=3))
    assert not grants(said)
    told = "the pods of group train disagree on its size: a says 2 and b says 3; write the same group-size in all"
    assert waits(said)["b"].message == told
    assert sorted(grants(bench.asks(member("b", size=2, revision=2)))) == ["a", "b"]


def test_a_job_is_as_urgent_as_its_least_urgent_pod():
    """One urgent pod would carry fifteen others past the rest of the queue."""
    bench = fleet(1)
    blocker = grants(bench.asks(asked("x", WHOLE)))["x"]
    bench.asks(member("a", priority=9), member("b", priority=1), asked("p", WHOLE, priority=5))
    bench.withdraw("x")
    assert sorted(grants(bench.words(bench.gone(blocker)))) == ["p"]


def test_a_pod_whose_slice_fails_is_tried_again_at_once_and_no_member_starts_before():
    """One bad GPU does not end a job that has another to go to."""
    bench = fleet(3)
    granted = grants(bench.asks(member("a", WHOLE), member("b", WHOLE)))
    assert not bound(bench.words(bench.ready(granted["a"])))
    said = bench.words(bench.fails(granted["b"]))
    assert kinds(only((msg.Revoke, msg.Grant), said)) == [msg.Revoke, msg.Grant]
    again = grants(said)["b"]
    assert again.booking.node not in {each.booking.node for each in granted.values()}
    assert sorted(bound(bench.words(bench.ready(again)))) == ["a", "b"]


@pytest.mark.parametrize("lost", ["its GPU breaks", "its node dies", "its agent restarts and dies"])
def test_a_place_that_is_lost_costs_the_others_of_its_job_nothing(lost: str):
    """Fifteen ready slices would be granted to others, for a sixteenth that another GPU could have."""
    bench = fleet(4)
    granted = grants(bench.asks(*(member(name, WHOLE, size=3) for name in "abc")))
    for name in "ab":
        bench.words(bench.ready(granted[name]))
    node, facts = granted["c"].booking.node, bench.allocator.ctx.facts
    said = []
    if lost == "its agent restarts and dies":
        said += bench.words(bench.observe(subjects.node(node), replace(facts.news[node], agent_run=RunId("again"))))
    if lost == "its GPU breaks":
        said += bench.words(bench.breaks(granted["c"]))
    else:
        said += bench.words(bench.pull(facts.inventories[node].snapshot, stale=True, stale_message="refused"))

    assert [each.booking.request for each in only(msg.Revoke, said)] == ["c"]
    again = grants(said)["c"]
    assert sorted(bound(bench.words(bench.ready(again)))) == ["a", "b", "c"]


def test_a_pod_that_is_deleted_before_its_job_began_is_waited_for_only_so_long():
    """A controller makes it again within seconds; if none does, the others' places are not kept for ever."""
    bench = fleet(3)
    granted = grants(bench.asks(member("a", WHOLE), member("b", WHOLE)))
    bench.words(bench.ready(granted["a"]))
    bench.withdraw("b")
    again = grants(bench.asks(member("c", WHOLE)))
    assert sorted(again) == ["c"]
    assert sorted(bound(bench.words(bench.ready(again["c"])))) == ["a", "c"]


def test_a_pod_that_joins_half_a_job_does_not_read_that_it_has_a_place():
    """Its owner would look for a slice that is not there, instead of the pods that have not asked."""
    bench = fleet(4)
    bench.asks(*(member(name, WHOLE, size=4) for name in "abcd"))
    for name in "cd":
        bench.withdraw(name)
    said = bench.asks(member("e", WHOLE, size=4))
    why = "group train starts when all of its 4 pods have a ready slice: 2 have a place, 0 a ready slice"
    assert waits(said)["e"].message == why


def test_an_allocator_that_finds_half_a_job_granted_completes_it():
    """A crash in the middle of sixteen grants: its successor goes on where it stopped, from the ledger alone."""
    bench = fleet(2)
    a, b = member("a", WHOLE), member("b", WHOLE)
    bench.asks(a)
    half = grant_of("node-0", a)
    bench.words(bench.reads(half))
    granted = grants(bench.asks(b))
    assert sorted(granted) == ["b"]
    assert granted["b"].booking.node == "node-1"
    bench.words(bench.ready(granted["b"]))
    assert sorted(bound(bench.words(bench.ready(half)))) == ["a", "b"]


def test_a_place_that_was_waived_is_never_bound():
    """`Waived` and `Bound` are written under one guard: an allocator that reads one does not write the other."""
    bench = fleet(2)
    a, b = member("a", WHOLE), member("b", WHOLE)
    mine = grant_of("node-0", a)
    bench.words(bench.reads(mine))
    bench.asks(a)
    word = msg.Waived(request="a", request_revision=1, allocations=(mine.booking.allocation,), cause="given back")
    bench.words(bench.observe(subjects.binding(RequestId("a")), word))
    said = bench.asks(b) + bench.words(bench.ready(mine))
    assert not bound(said)


def test_pods_of_a_running_job_are_bound_again_after_a_wipe():
    """Their source remembers what they are bound to: no pod waits for a group that runs already."""
    bench = fleet(2)
    a = member("a", WHOLE)
    half = grant_of("node-0", a, adopted=True)
    bench.words(bench.reads(half))
    bench.words(bench.ready(half))
    held = msg.Held(node=half.booking.node, allocation=half.booking.allocation)
    assert bound(bench.asks(replace(a, held=held))) == ["a"]


def test_a_running_job_gives_nothing_back_before_its_source_has_said_what_it_has():
    """An old message of one pod landed after a wipe, and nothing of the others: a running job would lose that slice."""
    bench = fleet(2)
    a = member("a", WHOLE, source=SourceName("cluster"))  # it has not published in this incarnation
    half = grant_of("node-0", a, adopted=True)
    bench.words(bench.reads(half))
    bench.words(bench.ready(half))
    bench.asks(a)
    for now in (100.0, 1_000.0, 10_000.0):
        assert not only((msg.Waived, msg.Revoke), tick(bench, now))
    synced = msg.SourceSynced(source=a.source, run=RunId("w1"), epoch=1, count=1)
    said = bench.words(bench.observe(subjects.source(a.source), synced)) + tick(bench, 20_000.0)
    assert kinds(only((msg.Waived, msg.Revoke), said)) == [msg.Waived, msg.Revoke]


def test_groups_of_two_namespaces_do_not_know_each_other():
    """A name is unique within its namespace only."""
    bench = fleet(2)
    said = bench.asks(member("a", WHOLE), member("b", WHOLE, namespace="other"))
    assert not grants(said)
    assert waits(said)["b"].message == "1 of 2 pods of group train have asked"


def test_nothing_is_held_for_a_job_whose_pods_have_not_all_asked():
    """Half a job that holds GPUs while its rest may never come starves the others."""
    bench = fleet(2)
    said = bench.asks(member("a", WHOLE, size=3), member("b", WHOLE, size=3))
    assert not grants(said)
    (reason,) = waits(said)["b"].reasons
    assert (reason.reason, reason.count, reason.of) == (WaitReason.GROUP_INCOMPLETE, 1, "pods of group train")
    assert waits(said)["b"].message == "2 of 3 pods of group train have asked"
    assert grants(bench.asks(asked("other", WHOLE)))
