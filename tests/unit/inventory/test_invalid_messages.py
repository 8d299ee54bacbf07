"""Invalid messages stop nothing: every other node is pulled as if they did not exist."""

import pytest
from factories.broker.nonsense import nonsense
from factories.inventory import AT, NODE, RULES, RUN, Bench, known, news, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import AnyMessage, GpuCounts, NodeRemoved
from sluice_inventory.core.events import Pull, PullSucceeded
from sluice_inventory.core.inventory import Inventory

OTHER = "gpu-2.example.internal"
SOME = 40
COUNTS = (GpuCounts(uuid="GPU-1", model="m", instances=0, creatable={"1g.5gb": 7}, creatable_total=7),)
CASES = [
    (subjects.node(NODE), news(gpus=COUNTS)),
    (subjects.node(NODE), NodeRemoved(node=NODE, cause="its Node object was deleted")),
    (subjects.inventory(NODE), known(stale_message="no answer")),
]


def scene() -> Bench:
    bench = Bench(Inventory(RUN, RULES))
    bench.start_reading()
    bench.caught_up()
    bench.hear(news())
    bench.feed(PullSucceeded(NODE, snapshot(), AT))
    return bench


def goes_on(bench: Bench) -> None:
    """Time passes, and a node that joins now is pulled."""
    for second in (1.0, 20.0, 60.0):
        bench.at(second)
        bench.feed(PullSucceeded(NODE, snapshot(), AT))
    done = bench.hear(news(node=OTHER))
    assert Pull(OTHER, news().endpoint) in done


@pytest.mark.parametrize(("address", "message"), CASES, ids=lambda value: type(value).__name__)
def test_an_invalid_message_does_not_stop_pulls_of_other_nodes(address: Address, message: AnyMessage):
    """One agent's invalid message would otherwise make every node stale, and nothing would be granted."""
    for poison in [None, *nonsense(address, message, some=SOME)]:
        bench = scene()
        bench.observe(address, poison)
        goes_on(bench)
