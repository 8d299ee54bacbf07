"""What namespaces may have while the nodes of a wiped broker are opened one after another."""

import pytest
from factories.scheduling.allocator import (
    INCARNATION,
    Bench,
    all_said,
    asked,
    gpu_report,
    messages,
    only,
    report_of,
    snapshot,
    whole_gpu,
)
from factories.scheduling.gangs import WHOLE, member
from factories.scheduling.resize import MODES, adjusted, mps, refused, shares_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import Incarnation, NodeName
from sluice.contracts.quotas.usage import Usage
from sluice_allocator.core.quotas import retry
from sluice_allocator.core.quotas.quota import usage
from sluice_allocator.core.resize.pending import AdjustReason

ALL_TAKEN = "namespace default may have 1 device and has 1; this one asks for 1, and none is left"


def remembered(grant: msg.Grant) -> msg.AllocationRequested:
    """The request of a pod whose source remembers what it has."""
    held = msg.Held(node=grant.booking.node, allocation=grant.booking.allocation)
    return replace(asked(grant.booking.name, WHOLE), held=held)


def opens(bench: Bench, node: str, *slices: msg.SliceReport) -> list:
    """A node is observed in the new life, with what it has; returns all that follows."""
    seen = snapshot(node, (gpu_report(node, 0),), slices=slices, generation=2)
    return messages(bench.add_node(seen)) + bench.words([])


def grants(said: list) -> list[str]:
    return [each.booking.name for each in only(msg.Grant, said) if not each.adopted]


def whys(said: list) -> list[str]:
    return [each.message for each in only(msg.Pending, said)]


@pytest.fixture
def grant(empty: Bench) -> msg.Grant:
    """A pod on node-b has all that its namespace may have; then the broker loses everything, and the limit is said."""
    empty.add_nodes("node-b")
    given = empty.bound("mine", WHOLE)
    empty.read_all(incarnation=Incarnation("900000"))
    empty.limit(gpus=1)
    return given


def test_no_pod_of_a_limited_namespace_is_served_before_its_source_has_published_all(empty, grant):
    opens(empty, "node-a")
    (why,) = whys(empty.asks(asked("more", WHOLE)))
    assert why == "namespace default has limits, and its source 'folder' has not reported all slices of its pods yet"
    empty.asks(remembered(grant))
    assert ALL_TAKEN in whys(empty.words(empty.observe(*all_said())))


def test_a_group_that_waited_for_a_source_is_served_when_it_has_said_all(empty, grant):
    """The pods of a job would stand until the next look at the queue, while others take their places."""
    empty.limit(gpus=2)
    opens(empty, "node-a")
    opens(empty, "node-c")
    empty.asks(member("rank-0", WHOLE), member("rank-1", WHOLE))
    assert grants(empty.words(empty.observe(*all_said()))) == ["rank-0", "rank-1"]


def test_who_waited_for_what_is_lost_is_served(empty, grant):
    """What a source remembers and no node has would count for ever."""
    empty.asks(remembered(grant))
    empty.observe(*all_said())
    opens(empty, "node-a")
    empty.asks(asked("more", WHOLE))
    said = opens(empty, "node-b")
    assert len(only(msg.Released, said)) == 1
    assert grants(said + empty.words(empty.ends("mine", cause="slice lost"))) == ["more"]


def test_what_counts_twice_for_itself_holds_up_no_other(empty, grant):
    """A pod that is given its own slice again would be in its own way."""
    empty.asks(remembered(grant))
    empty.observe(*all_said())
    said = opens(empty, "node-b", report_of(grant.booking)) + empty.words(empty.ready(grant))
    assert [each.allocation for each in only(msg.Bound, said)] == [grant.booking.allocation]
    assert whys(said) == []


def test_a_share_is_not_made_larger_into_what_others_have_on_nodes_that_are_not_open(empty):
    """A bound share is not revoked: its namespace would have more than it may, until a pod ends."""
    shown = {name: snapshot(name, (gpu_report(name, 0, mig=False),), modes=MODES) for name in ("node-a", "node-b")}
    empty.add_node(shown["node-a"])
    here = empty.bound("here", mps(10_000))
    empty.add_node(shown["node-b"])
    empty.observe(subjects.cordon(NodeName("node-a")), msg.Cordoned(node=NodeName("node-a")))
    there = empty.bound("there", mps(20_000))
    empty.read_all(incarnation=Incarnation("900000"))
    empty.limit(memory_mib=40_000)
    for grant, memory_mib in ((here, 10_000), (there, 20_000)):
        empty.asks(replace(remembered(grant), claims=(mps(memory_mib),)))
    empty.add_node(replace(shown["node-a"], slices=(report_of(here.booking),), generation=2))
    empty.words(empty.ready(here))

    unsure = refused(empty, "here", memory_mib=30_000)
    assert unsure.reason is AdjustReason.NOT_NOW
    assert unsure.message.endswith("source 'folder' has not reported all slices of its pods yet; retry")
    assert shares_of(adjusted(empty, "here", memory_mib=9_000)) == [9_000]
    empty.words(empty.observe(*all_said()))
    wrong = refused(empty, "here", memory_mib=30_000)
    assert (wrong.reason, dict(wrong.most)) == (AdjustReason.QUOTA_EXCEEDED, {"memory_mib": 20_000})
    assert shares_of(adjusted(empty, "here", memory_mib=20_000)) == [20_000]


def test_what_pods_had_before_a_wipe_is_not_added_up_again_for_each_of_them_that_is_found(empty, monkeypatch):
    """With 40,000 pods of one namespace the allocator would do nothing else for minutes, while all nodes are opened."""
    looks, least_of = [], retry.least_of
    monkeypatch.setattr(retry, "least_of", lambda ctx, claims: looks.append(claims) or least_of(ctx, claims))
    opens(empty, "node-z")
    empty.limit(gpus=100)
    bookings = [whole_gpu(f"p{n}_r0_1", node=f"node-{n}", request=f"p{n}") for n in range(100)]
    for booking in bookings:
        empty.asks(remembered(msg.Grant(revision=1, incarnation=INCARNATION, booking=booking)))
    assert "and has 100;" in whys(empty.asks(asked("more", WHOLE)))[-1]
    looks.clear()
    for booking in bookings:
        opens(empty, booking.node, report_of(booking))
        remembered_still = retry.usage_unbooked(empty.allocator.ctx, "default", None)
        assert usage(empty.allocator.ctx, "default") + remembered_still == Usage(100, 100 * 40320, 700_000)
    assert len(looks) < 1000
