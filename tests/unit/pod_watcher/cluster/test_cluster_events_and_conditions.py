"""What a pod's Events and condition show, when, and how often."""

import re

import pytest
from conftest import RUNNING, bound
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.kube.names import GATE
from sluice.contracts.messages import Bound, Pending, Refused, WaitOver, Waived
from sluice.contracts.reasons import ReasonCount, Refusal, RefusalReason, WaitReason
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.workqueue import FairLine, TokenBucket

NO_SUCH = Refusal(reason=RefusalReason.UNKNOWN_PROFILE, message="no such profile")
REFUSED = Refused(request=RequestId("u1"), request_revision=1, refusal=NO_SUCH)
BINDING = subjects.binding(RequestId("u1"))
NODE_A = subjects.inventory(NodeName("node-a"))


def pending(bench, uid, text):
    count = ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=3, of="A100")
    message = Pending(request=RequestId(uid), request_revision=1, message=text, reasons=(count,))
    bench.observe(subjects.waiting(RequestId(uid)), message)


@pytest.mark.parametrize("name", ["a" * 199 + ".bcd", "a" * 199 + "--bcd"])
def test_the_events_of_a_pod_with_a_long_name_have_names_that_are_taken(bench, name):
    """An API server refuses a name with a label that ends in a dash or is empty: that pod would have no Events."""
    bench.create(name, "u1")
    pending(bench, "u1", "3 A100 are full")
    bench.pass_time(3)
    (event,) = bench.api.events
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event.key)
    assert len(event.key) <= 253


def test_a_thousand_waiting_pods_do_not_flood_the_api_server(new):
    """Etcd would fill with reasons that change many times a second."""
    bench = new(conditions_per_s=20.0, events_per_s=20.0, burst=100.0).start()
    for number in range(1000):
        bench.create(f"p{number}", f"u{number}")
    for turn in range(10):
        for number in range(1000):
            pending(bench, f"u{number}", f"reason {turn}")
        bench.pass_time(1)
    assert len(bench.api.conditions) <= 100 + 20 * 11
    assert len(bench.api.events) <= 100 + 20 * 11
    bench.pass_time(120)
    assert {uid for uid, _, _ in bench.api.conditions} == {f"u{number}" for number in range(1000)}


@pytest.mark.parametrize("answer", [bound("u1"), REFUSED])
def test_what_else_an_answer_waives_is_no_news(bench, answer):
    """It is for other allocators: a pod would seem to be warned, or refused, twice."""
    bench.create("train", "u1")
    answer = replace(answer, warnings=("its daemon died",)) if isinstance(answer, Bound) else answer
    bench.observe(BINDING, answer)
    bench.pass_time(3)
    told, events = list(bench.told), len(bench.api.events)
    bench.observe(BINDING, replace(answer, waives=(AllocationId("u1_r_2"),)))
    bench.pass_time(3)
    assert (bench.told, len(bench.api.events)) == (told, events)


def test_a_pod_whose_refusal_was_waived_waits_like_any_other_and_is_bound(bench):
    """An owner who reads that it can never start would delete it, while it waits for a node that joins."""
    bench.create("train", "u1")
    bench.observe(BINDING, REFUSED)
    bench.pass_time(3)
    no_more = Waived(request=RequestId("u1"), request_revision=1, allocations=(), cause="it holds no more")
    bench.observe(BINDING, no_more)
    pending(bench, "u1", "no GPU here has it")
    bench.pass_time(60)
    assert bench.api.conditions == [("u1", "False", "Refused"), ("u1", "False", "GpuLayoutFull")]
    assert [each.reason for each in bench.api.events] == ["UnknownProfile", "WaitsForSlice"]
    bench.bind("u1")
    bench.change("u1", spec={"nodeName": "node-a"}, status=RUNNING)
    bench.pass_time(60)
    assert bench.api.conditions[-1][1] == "True"


def test_what_lasts_is_said_again_before_it_is_forgotten(bench):
    """The API server forgets an event after an hour; `kubectl describe` would show a pod that waits for nothing."""
    bench.create("train", "u1")
    pending(bench, "u1", "3 A100 are full")
    bench.pass_time(2 * 3600)
    assert [each.count for each in bench.api.events] == [1, 2, 3, 4]
    assert len({each.key for each in bench.api.events}) == 1
    assert len(bench.api.conditions) == 1


def test_no_event_reports_an_allocator_that_is_only_busy(bench):
    """A thousand pods at once would all read that the allocator may be down."""
    bench.create("train", "u1")
    bench.pass_time(29)
    assert bench.api.events == []
    bench.pass_time(3)
    assert [each.reason for each in bench.api.events] == ["NotYetLookedAt"]
    pending(bench, "u1", "3 A100 are full")
    bench.pass_time(1)
    assert [each.reason for each in bench.api.events] == ["NotYetLookedAt", "WaitsForSlice"]


@pytest.mark.parametrize("waited_s", [40, 300])
def test_a_pod_that_has_waited_long_is_not_told_of_a_dead_allocator_when_it_is_granted(bench, waited_s):
    """Between grant and binding people would be sent to look for an allocator that has just served them."""
    bench.create("train", "u1")
    pending(bench, "u1", "3 A100 are full")
    bench.pass_time(waited_s)
    bench.observe(subjects.waiting(RequestId("u1")), WaitOver(request=RequestId("u1")))
    bench.pass_time(29)
    assert {each.reason for each in bench.api.events} == {"WaitsForSlice"}
    bench.bind("u1")
    assert [each.reason for each in bench.api.events] == ["WaitsForSlice", "SliceBound"]


def test_a_pod_whose_slice_takes_long_to_make_is_told_so(bench, sick_node):
    bench.create("train", "u1")
    bench.observe(NODE_A, sick_node("making"))
    bench.pass_time(120)
    (told,) = bench.api.events
    assert (told.level, told.reason) == ("Normal", "WaitsForSlice")
    assert told.note.startswith("its place on node-a is reserved, and its slice is being created.")
    bench.observe(NODE_A, sick_node("ready"))
    bench.pass_time(29)
    assert len(bench.api.events) == 1
    bench.pass_time(3)
    assert bench.api.events[-1].reason == "NotYetLookedAt"


def test_a_pod_that_others_held_back_is_given_the_same_patience_when_it_asks(bench):
    """What Kueue lets in after an hour would read at once that the allocator may be down."""
    bench.create("train", "u1", gates=("kueue.x-k8s.io/admission", GATE))
    bench.pass_time(3600)
    bench.change("u1", spec={"schedulingGates": [{"name": GATE}]})
    bench.pass_time(29)
    assert {each.reason for each in bench.api.events} == {"OtherGates"}
    bench.pass_time(3)
    assert bench.api.events[-1].reason == "NotYetLookedAt"


def test_a_refusal_of_the_api_server_is_told_when_it_lasts(bench):
    """A pod would stay gated in silence; a short trouble needs no Event."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    for refused in range(1, 6):
        assert [each.reason for each in bench.api.events] == []
        bench.pass_time(20)
        bench.calls.clear()
        bench.handle(e.Failed(call, 422, f"no {refused}"))
    bench.pass_time(1)
    (said,) = bench.api.events
    assert (said.reason, said.note) == (
        "SliceNotUsable",
        "the pod cannot be bound to its slice: the API server refuses the patch (422: no 5); retrying",
    )
    bench.calls.clear()
    bench.automatic = True
    bench.handle(e.Done(e.ReadPod(RequestId("u1"), "ns", "train"), bench.api.find("u1")))
    bench.pass_time(120)
    assert bench.api.opened == ["u1"]


@pytest.mark.parametrize("owner", ["", "Job"])
def test_a_lost_slice_says_what_to_do(new, owner):
    bench = new(evict_lost=False).start()
    bench.run("train", "u1", owner=owner)
    bench.release("u1", "slice lost: node-a was removed")
    bench.pass_time(1)
    again = "its Job recreates it" if owner else "create it again"
    note = f"its slice was lost (node-a was removed), and it gets no other: delete the pod, and {again}."
    assert (bench.api.events[-1].reason, bench.api.events[-1].note) == ("SliceLost", note)


def test_a_line_is_served_in_its_order():
    line = FairLine(TokenBucket(1.0, 1.0))
    one, two, three = (RequestId(name) for name in ("one", "two", "three"))
    assert line.take_turn(one, 0.0)
    assert not line.take_turn(two, 0.0)
    assert not line.take_turn(three, 5.0), "two stands before it"
    assert line.turns(5.0) == [two]
    assert not line.take_turn(three, 5.0)
    assert line.take_turn(two, 5.0)
    line.leave(three)
    assert line.turns(9.0) == []


def test_a_slice_out_of_order_is_told_and_that_it_is_well_again(bench, sick_node):
    """The program fails, and its owner would look for the mistake in it."""
    bench.run("train", "u1")
    bench.observe(NODE_A, sick_node(state="degraded"))
    bench.pass_time(1)
    assert bench.api.conditions == [("u1", "False", "SliceDegraded")]
    assert "its GPU 0 is unhealthy (Xid 79)" in bench.api.events[-1].note
    bench.observe(NODE_A, sick_node(state="degraded", stale=True))
    bench.pass_time(30)
    assert len(bench.api.conditions) == 1, "no pod was reconciled"
    bench.observe(NODE_A, sick_node(state="ready"))
    bench.pass_time(30)
    assert bench.api.conditions[-1] == ("u1", "True", "SliceReady")
