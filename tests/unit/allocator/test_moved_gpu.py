"""A card is put into another machine while something is still booked on it in the first one's ledger (LAW 3)."""

import pytest
from factories.allocator import asked, claim, gpu_report, snapshot, working_allocator
from factories.jobs import ask, everything, grants, tick

from sluice.contracts import subjects
from sluice.contracts.messages import NodeRemoved


@pytest.mark.parametrize("mig", [True, False])
def test_a_gpu_that_was_moved_is_given_when_its_former_node_is_given_up(mig):
    """Else a card that was saved from a broken machine is idle until the allocator is started anew."""
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
    desk = bench.allocator.desk
    assert desk.fleet.booking(grant.booking.allocation) is None  # closed with its node
    assert grants(said)["p2"].booking.node == "new"
