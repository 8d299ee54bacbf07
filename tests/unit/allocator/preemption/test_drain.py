"""Cordons and drains: nothing new lands there, whose pods are evicted, and how an operator takes it back."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    Bench,
    asked,
    claim,
    gpu_report,
    snapshot,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId

WHOLE = claim(profile="7g.40gb")
SMALL = claim(profile="1g.5gb")
NODE = NodeName("node-a")


@pytest.fixture
def pair(empty: Bench) -> Bench:
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1))))
    empty.said.clear()
    return empty


def run(bench: Bench, message) -> msg.Grant:
    """A pod that is asked for, granted, and has its slice."""
    writes = bench.land_all(bench.request(message))
    (grant,) = [write.message for write in writes if isinstance(write.message, msg.Grant)]
    bench.land_all(bench.ready(grant))
    return grant


def cordon(bench: Bench, *gpus: str, drain: bool = False, why: str = "new fans") -> list:
    """The operator's word, and what is written because of it."""
    word = msg.Cordoned(node=NODE, gpus=gpus, why=why, drain=drain)
    return [write.message for write in bench.land_all(bench.observe(subjects.cordon(NODE), word))]


def uncordon(bench: Bench) -> list:
    writes = bench.land_all(bench.observe(subjects.cordon(NODE), msg.Uncordoned(node=NODE)))
    return [write.message for write in writes]


def tick(bench: Bench, seconds: float) -> list:
    return [write.message for write in bench.passes(seconds, step=1.0)]


def test_uncordon_takes_the_orders_back(pair):
    """A pod that was blocked by its budget would be evicted hours after the work was called off."""
    run(pair, asked("one", WHOLE))
    cordon(pair, drain=True)
    blocked = msg.EvictionBlocked(request=RequestId("one"), why="the budget allows none")
    pair.land_all(pair.observe(subjects.evicted(RequestId("one")), blocked))
    assert tick(pair, 600) == []
    assert uncordon(pair) == [msg.EvictionOver(request=RequestId("one"))]


def test_a_pod_that_is_gone_is_ordered_to_go_no_more(pair):
    one = run(pair, asked("one", WHOLE))
    cordon(pair, drain=True)
    said = [each.message for each in pair.land_all(pair.ends("one"))]
    assert [type(each) for each in said] == [msg.Revoke, msg.EvictionOver]
    said = [each.message for each in pair.land_all(pair.gone(one))]
    assert [type(each) for each in said] == [msg.Closed, msg.Released]


def test_a_slice_that_is_being_made_is_bound_first_and_then_sent_away(pair):
    (write,) = pair.land_all(pair.request(asked("one", WHOLE)))
    grant = write.message
    assert cordon(pair, drain=True) == []
    said = [each.message for each in pair.land_all(pair.ready(grant))]
    assert [type(each) for each in said] == [msg.Bound, msg.EvictionOrdered]


def test_whoever_waits_is_told_who_said_so_and_why(pair):
    """`CardCordoned` without a word of the operator sends people to ask around."""
    cordon(pair)
    (write,) = pair.land_all(pair.request(asked("one", WHOLE)))
    assert isinstance(write.message, msg.Pending)
    assert write.message.message.endswith(": cordoned; node-a is cordoned (new fans)")


@pytest.mark.parametrize("gpus", [(), ("GPU-node-a-0", "GPU-node-a-1")], ids=["node", "each GPU"])
@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 10},
        {"leeway": msg.Leeway(substitute="return", movable=True)},
        {"group": msg.PodGroup(name="job", size=1)},
    ],
    ids=["preempting", "substituted", "in a group"],
)
def test_no_other_way_leads_onto_a_cordoned_place(pair, changes, gpus):
    """By preemption, as a larger profile, in a group, by a promise after some time: each would undo the cordon."""
    shown = tuple(gpu.report.uuid for gpu in pair.allocator.ctx.cluster.nodes[NODE].gpus)
    evictable = msgspec.structs.replace(asked("low", WHOLE), leeway=msg.Leeway(preemptible=True, movable=True))
    run(pair, evictable)
    cordon(pair, *(shown if gpus else ()))
    message = msgspec.structs.replace(asked("one", SMALL), **changes)
    said = [each.message for each in pair.land_all(pair.request(message))]
    said += tick(pair, 600)
    assert said
    assert {type(each) for each in said} == {msg.Pending}


def test_a_pod_is_served_as_soon_as_the_cordon_is_taken_back(pair):
    cordon(pair)
    pair.land_all(pair.request(asked("one", WHOLE)))
    assert any(isinstance(each, msg.Grant) for each in uncordon(pair))
