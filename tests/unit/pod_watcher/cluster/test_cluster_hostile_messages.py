"""Messages that make no sense stop no cluster: the next pod is asked for and bound."""

import pytest
from factories.broker.nonsense import nonsense, words_about

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested

SOME = 10
UID = RequestId("u1")


def words(bench, sick_node) -> list:
    """A sensible message at every kind of subject that a cluster's pod-watcher reads."""
    return [*words_about(bench.bus, UID, "cluster"), (subjects.inventory("node-a"), sick_node("degraded"))]


def scene(new):
    bench = new().start()
    bench.grant("train", UID)
    return bench


@pytest.mark.parametrize("which", range(7))
def test_the_next_pod_is_bound_behind_a_word_that_makes_no_sense(new, sick_node, which):
    """One bad message would otherwise end every run of the pod-watcher, and no pod of the cluster would start."""
    address, sensible = words(scene(new), sick_node)[which]
    for poison in [None, *nonsense(address, sensible, some=SOME)]:
        bench = scene(new)
        bench.observe(address, poison)
        bench.pass_time(3.0)
        bench.list()
        bench.create("next", "u2")
        assert isinstance(bench.word("u2"), AllocationRequested)
        bench.bind("u2")
        bench.pass_time(1.0)
        assert bench.annotations("u2"), bench.told
