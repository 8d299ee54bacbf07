"""A pod whose slice is on a node that keeps pods out by now: it declines that slice, and waits for another one."""

import pytest
from api_model import new_node

from sluice_pod_watcher.core.cluster import events as e

KEEPS_OUT = [
    ({"unschedulable": True}, "is cordoned"),
    (
        {"taints": [{"key": "gpu", "value": "sick", "effect": "NoExecute"}]},
        "has the taint gpu=sick:NoExecute, which the pod does not tolerate",
    ),
]


@pytest.mark.parametrize(("spec", "why"), KEEPS_OUT, ids=["cordon", "taint"])
@pytest.mark.parametrize("owner", ["", "Job"])
def test_a_pod_gives_back_a_slice_on_a_node_that_keeps_it_out_by_now(bench, spec, why, owner):
    """A pin cannot be changed: a pod of the moment after a cordon would wait for its end, with its slice."""
    bench.create("train", "u1", owner=owner)
    bench.list_nodes(new_node("node-a"))
    bench.handle(e.Seen("nodes", new_node("node-a", 2, **spec)))
    bench.bind("u1")
    assert bench.word("u1").declined == "u1_r_1"
    assert not bench.api.opened
    assert not bench.api.evictions
    notes = [each.note for each in bench.api.events]
    assert notes == [f"the pod declined its slice on node-a, which {why}. It waits for another slice"]
    bench.handle(e.Seen("nodes", new_node("node-a", 3)))
    bench.bind("u1", revision=2)
    assert not bench.api.opened, "it has said that it waits for another one"
    bench.bind("u1", number=2)
    assert bench.api.opened == ["u1"]
    assert bench.word("u1").held.allocation == "u1_r_2"


@pytest.mark.parametrize("lands", ["before the decline", "after it"])
def test_a_pod_whose_gate_may_be_open_is_declined_for_by_a_patch_that_excludes_the_opening(bench, lands):
    """Else a node that was cordoned meanwhile would get the pod by the next try, for good."""
    bench.create("train", "u1")
    bench.list_nodes(new_node("node-a"))
    bench.automatic = False
    bench.bind("u1")
    (opening,) = [each for each in bench.calls if isinstance(each, e.BindPod)]
    bench.calls.clear()
    if lands == "before the decline":
        bench.carry_out(opening)
    bench.automatic = True
    bench.handle(e.Seen("nodes", new_node("node-a", 2, unschedulable=True)), e.Failed(opening, 0, "no answer in time"))
    for _ in range(5):
        bench.pass_time(30.0)
    if lands == "before the decline":
        assert (bench.api.opened, bench.word("u1").declined) == (["u1"], None)
    else:
        assert (bench.api.opened, bench.word("u1").declined) == ([], "u1_r_1")
        assert isinstance(bench.carry_out(opening)[0], e.Failed)
