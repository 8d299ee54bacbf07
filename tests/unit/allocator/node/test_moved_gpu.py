"""A card is put into another machine while something is still booked on it in the first one's ledger (LAW 3)."""

import pytest
from factories.scheduling.allocator import asked, claim, gpu_report, snapshot, whole_gpu, working_allocator
from factories.scheduling.gangs import ask, everything, grants, tick

from sluice.contracts.bus import subjects
from sluice.contracts.messages import NodeRemoved
from sluice_allocator.core.placement import (
    ClusterState,
    PlacementConfig,
    find_place_on,
    find_reservation,
    place_request_of,
)

WHOLE = claim(profile="7g.40gb")


@pytest.mark.parametrize("mig", [True, False])
def test_a_gpu_that_was_moved_is_given_when_its_former_node_is_given_up(mig):
    """Else a card that was saved from a broken machine is idle until the allocator is restarted."""
    bench = working_allocator()
    whole = claim(profile="7g.40gb") if mig else claim(profile=None)
    card = gpu_report("old", 0, mig=mig)
    bench.add_node(snapshot("old", (card,)))
    (grant,) = grants(ask(bench, asked("p1", whole))).values()
    bench.land_all(bench.ready(grant))
    bench.add_node(snapshot("new", (card,)))  # its machine is dead, and the card in another one
    said = ask(bench, asked("p2", whole))
    assert not grants(said)  # what is booked on it may still be there, for all that anybody knows
    said += everything(bench, bench.observe(subjects.node("old"), NodeRemoved(node="old", cause="it burnt")))
    for _ in range(60):
        said += tick(bench, 2.0)
    ctx = bench.allocator.ctx
    assert ctx.cluster.booking(grant.booking.allocation) is None  # closed with its node
    assert grants(said)["p2"].booking.node == "new"


def test_what_is_booked_on_a_moved_gpu_counts_in_a_trial_of_its_new_node():
    fleet = ClusterState(PlacementConfig())
    fleet.show(snapshot("node-a", (gpu_report("node-a", 0),)))
    fleet.set_usable("node-a", None)
    fleet.book(whole_gpu("p1_r1_1"))
    fleet.show(snapshot("node-a", ()))
    there = snapshot("node-b", (gpu_report("node-a", 0),))
    fleet.show(there)
    fleet.set_usable("node-b", None)
    asking = place_request_of(asked("big", WHOLE))
    assert find_place_on(fleet, asking, "node-b", frozenset()) is None
    promise = find_reservation(fleet, asking, shown={"node-b": there}, wait_for=lambda a: 1, open_to=lambda m: True)
    assert promise.after == ("p1_r1_1",)
    assert find_place_on(fleet.alone(there), asking, "node-b", frozenset()) is None


def test_a_moved_gpu_may_be_promised():
    bench = working_allocator()
    card = gpu_report("old", 0)
    bench.add_node(snapshot("old", (card,)))
    (grant,) = grants(ask(bench, asked("p1", WHOLE))).values()
    bench.land_all(bench.ready(grant))
    bench.add_node(snapshot("old", (), generation=2))  # the card is out of it
    bench.add_node(snapshot("new", (card,)))
    said = ask(bench, asked("p2", WHOLE))
    for _ in range(20):
        said += tick(bench, 30.0)
    assert not grants(said) or grants(said)["p2"].after == (grant.booking.allocation,)
