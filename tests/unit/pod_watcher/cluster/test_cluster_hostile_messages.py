"""Words that make no sense stop no cluster: the next pod is asked for and bound."""

import pytest
from factories.broker.nonsense import nonsense

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, EvictionOrdered, Pending, RequestWithdrawn, SourceSynced
from sluice.contracts.reasons import ReasonCount, WaitReason

SOME = 10
UID = RequestId("u1")


def words(bench, sick_node) -> list:
    """A sensible word at every kind of subject that a cluster's pod-watcher reads, about its one pod."""
    reason = ReasonCount(reason=WaitReason.NO_NODES, count=1, of="nodes", known_as="X")
    return [
        (subjects.request(UID), bench.bus[subjects.request(UID).subject]),
        (subjects.request(UID), RequestWithdrawn(revision=2, source=SourceName("cluster"), cause="pod gone")),
        (subjects.binding(UID), bench.bus[subjects.binding(UID).subject]),
        (subjects.waiting(UID), Pending(request=UID, request_revision=1, message="none", reasons=(reason,))),
        (subjects.eviction(UID), EvictionOrdered(request=UID, cause="drain")),
        (subjects.source(SourceName("cluster")), SourceSynced(source="cluster", run="w0", epoch=1, count=1)),
        (subjects.inventory("node-a"), sick_node("degraded")),
    ]


def scene(new):
    bench = new().start()
    bench.create("train", UID)
    bench.bind(UID)
    return bench


@pytest.mark.parametrize("which", range(7))
def test_the_next_pod_is_bound_behind_a_word_that_makes_no_sense(new, sick_node, which):
    """One bad word would otherwise end every life of the pod-watcher, and no pod of the cluster would start."""
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
