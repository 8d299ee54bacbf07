"""A pod whose slice is on a node that keeps pods out by now: it declines that slice, and waits for another one."""

import pytest
from api_model import RefusedError
from conftest import bound

from sluice.contracts.bus import subjects
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.cluster.pods import pod_patches
from sluice_pod_watcher.core.cluster.pods.pod_view import read_pod


def node_of(name, version, **spec):
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "10"}
    meta = {"name": name, "resourceVersion": str(version), "labels": {}}
    return {"metadata": meta, "spec": spec, "status": {"allocatable": allocatable}}


def cordoned(bench, **spec):
    bench.handle(e.ListingStarted("nodes"), e.NodeSeen(node_of("node-a", 1)), e.ListingEnded("nodes", "1"))
    bench.handle(e.NodeSeen(node_of("node-a", 2, **spec)))


KEEPS_OUT = [
    ({"unschedulable": True}, "is cordoned"),
    (
        {"taints": [{"key": "gpu", "value": "sick", "effect": "NoExecute"}]},
        "has the taint gpu=sick:NoExecute, which the pod does not tolerate",
    ),
]


def binds(bench, uid="u1"):
    return [each for each in bench.calls if isinstance(each, e.BindPod) and each.uid == uid]


@pytest.mark.parametrize(("spec", "why"), KEEPS_OUT, ids=["cordon", "taint"])
@pytest.mark.parametrize("owner", ["", "Job"])
def test_a_pod_gives_back_a_slice_on_a_node_that_keeps_it_out_by_now(bench, spec, why, owner):
    """A pin cannot be changed: a pod of the moment after a cordon would wait for its end, with its slice."""
    bench.create("train", "u1", owner=owner)
    cordoned(bench, **spec)
    bench.bind("u1")
    assert bench.word("u1").declined == "u1_r_1"
    assert not bench.api.opened
    assert not bench.api.evictions
    notes = [each.note for each in bench.api.events]
    assert notes == [f"the pod declined its slice on node-a, which {why}. It waits for another slice"]
    bench.handle(e.NodeSeen(node_of("node-a", 3)))
    bench.bind("u1", revision=2)
    assert not bench.api.opened, "it has said that it waits for another one"
    bench.bind("u1", number=2)
    assert bench.api.opened == ["u1"]
    assert bench.word("u1").held.allocation == "u1_r_2"


def test_what_was_declined_is_remembered_by_the_pod_and_the_bus(bench, new):
    """The node takes pods again, and another pod-watcher works: it would let the pod go with what is taken back."""
    bench.create("train", "u1")
    cordoned(bench, unschedulable=True)
    bench.bind("u1")
    after = new(bench.api, {subjects.binding("u1").subject: bound("u1")}, run="w2")
    after.start()
    assert not bench.api.opened
    assert after.word("u1").declined == "u1_r_1"
    unseen = new(bench.api, dict(bench.bus), run="w3")
    unseen.read()
    assert unseen.word("u1").declined == "u1_r_1"


def test_of_two_patches_that_decline_a_slice_and_let_its_pod_go_with_it_one_lands(bench):
    """They are sent by two pod-watchers, of which one has stood still."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (late,) = binds(bench)
    bench.handle(e.PatchRefused("u1", "bind", 429, "busy"))
    cordoned(bench, unschedulable=True)
    bench.calls.clear()
    bench.pass_time(10)
    (declines,) = [each for each in bench.calls if isinstance(each, e.AnnotatePod)]
    bench.api.patch("train", declines.patch)
    with pytest.raises(RefusedError):
        bench.api.patch("train", late.patch)
    bench.create("other", "u2")
    view = read_pod(bench.api.pods["other"])
    bench.api.patch("other", pod_patches.bind(view, "node-a", {}))
    with pytest.raises(RefusedError):
        bench.api.patch("other", pod_patches.decline(view, "u2_r_1"))


def test_a_patch_that_had_no_answer_is_sent_again_whatever_its_node_says_by_now(bench):
    """It may have landed, and the pod run there: only the same patch can tell."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (sent,) = bench.calls
    bench.calls.clear()
    bench.handle(e.PatchRefused("u1", "bind", 0, "no answer"))
    cordoned(bench, unschedulable=True)
    bench.pass_time(2)
    (read,) = bench.calls
    bench.calls.clear()
    bench.handle(*bench.carry_out(read))
    bench.pass_time(10)
    assert [each.patch for each in bench.calls if isinstance(each, e.BindPod)] == [sent.patch]
