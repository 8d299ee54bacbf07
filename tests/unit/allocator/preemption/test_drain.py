"""Cordons and drains: nothing new lands there, its pods are evicted, and how an operator takes it back."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, kinds, only
from factories.scheduling.preemption import blocked, tick

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId

WHOLE = claim(profile="7g.40gb")
SMALL = claim(profile="1g.5gb")
NODE = NodeName("node-a")


@pytest.fixture
def pair(empty: Bench) -> Bench:
    empty.add_nodes("node-a", gpus=2)
    empty.said.clear()
    return empty


def cordon(bench: Bench, *gpus: str, drain: bool = False) -> list:
    """The operator's message, and what is written because of it."""
    word = msg.Cordoned(node=NODE, gpus=gpus, why="new fans", drain=drain)
    return bench.words(bench.observe(subjects.cordon(NODE), word))


def uncordon(bench: Bench) -> list:
    return bench.words(bench.observe(subjects.cordon(NODE), msg.Uncordoned(node=NODE)))


def test_uncordon_takes_the_orders_back(pair):
    """A pod that was blocked by its budget would be evicted hours after the work was called off."""
    pair.bound("one", WHOLE)
    cordon(pair, drain=True)
    blocked(pair, "one")
    assert tick(pair, 600) == []
    assert uncordon(pair) == [msg.EvictionOver(request=RequestId("one"))]


def test_a_pod_that_is_gone_is_ordered_to_go_no_more(pair):
    one = pair.bound("one", WHOLE)
    cordon(pair, drain=True)
    assert kinds(pair.withdraw("one")) == [msg.Revoke, msg.EvictionOver]
    assert kinds(pair.words(pair.gone(one))) == [msg.Closed, msg.Released]


def test_a_slice_that_is_being_made_is_bound_first_and_then_sent_away(pair):
    grant = pair.granted("one", WHOLE)
    assert cordon(pair, drain=True) == []
    assert kinds(pair.words(pair.ready(grant))) == [msg.Bound, msg.EvictionOrdered]


def test_a_waiting_pod_shows_who_cordoned_and_why(pair):
    """`CardCordoned` without the operator's reason sends people to ask around."""
    cordon(pair)
    (pending,) = only(msg.Pending, pair.asks(asked("one", WHOLE)))
    assert pending.message.endswith(": cordoned; node-a is cordoned (new fans)")


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
    pair.run(msgspec.structs.replace(asked("low", WHOLE), leeway=msg.Leeway(preemptible=True, movable=True)))
    cordon(pair, *gpus)
    said = pair.asks(msgspec.structs.replace(asked("one", SMALL), **changes)) + tick(pair, 600)
    assert set(kinds(said)) == {msg.Pending}


def test_a_pod_is_served_as_soon_as_the_cordon_is_taken_back(pair):
    cordon(pair)
    pair.asks(asked("one", WHOLE))
    assert only(msg.Grant, uncordon(pair))
