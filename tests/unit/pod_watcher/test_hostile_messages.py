"""Invalid messages stop no source: the next manifest makes its request, and bound pods stay published."""

import pytest
from factories.broker.nonsense import nonsense

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import (
    AllocationRequested,
    EvictionOrdered,
    HostFacts,
    Pending,
    RequestWithdrawn,
    SourceSynced,
)
from sluice.contracts.reasons import ReasonCount, WaitReason

SOME = 10


def words(bench) -> list:
    """A sensible word at every kind of subject that a folder's pod-watcher reads, about its one pod."""
    ((uid, asked),) = bench.requests().items()
    request = RequestId(uid)
    bench.bound(uid, warnings=("a daemon died",))
    reason = ReasonCount(reason=WaitReason.NO_NODES, count=1, of="nodes")
    facts = HostFacts(cpu_cores=8.0, memory_mib=9000, pods_free=9, labels={"zone": "a"})
    waits = Pending(request=request, request_revision=1, message="none", reasons=(reason,))
    synced = SourceSynced(source=SourceName("folder"), run="w0", epoch=1, count=1)
    return [
        (subjects.request(request), asked),
        (subjects.request(request), RequestWithdrawn(revision=2, source=SourceName("folder"), cause="pod gone")),
        (subjects.binding(request), bench.bus[subjects.binding(request).subject]),
        (subjects.waiting(request), waits),
        (subjects.eviction(request), EvictionOrdered(request=request, cause="drain")),
        (subjects.source(SourceName("folder")), synced),
        (subjects.host("node-a"), facts),
    ]


def scene(new, manifest):
    bench = new()
    bench.start()
    bench.files["a.yaml"] = manifest("a")
    bench.list(1.0)
    return bench


@pytest.mark.parametrize("which", range(7))
def test_the_next_manifest_is_asked_for_behind_a_word_that_makes_no_sense(new, manifest, which):
    """One bad message would otherwise end every run of the pod-watcher, and no pod would get a request."""
    address, sensible = words(scene(new, manifest))[which]
    for poison in [None, *nonsense(address, sensible, some=SOME)]:
        bench = scene(new, manifest)
        ((uid, _),) = bench.requests().items()
        address = words(bench)[which][0]
        if poison is not None and getattr(poison, "request", uid) != uid:
            continue
        bench.observe(address, poison)
        bench.files["b.yaml"] = manifest("b")
        for _ in range(3):
            bench.list(10.0)
        asked = [m.name for m in bench.requests().values() if isinstance(m, AllocationRequested)]
        assert "b" in asked
