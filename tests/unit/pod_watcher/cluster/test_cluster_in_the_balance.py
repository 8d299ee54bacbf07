"""What is said of a pod on a bus that was wiped, while nobody knows what it has."""

import pytest

from sluice.contracts import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Held, RequestWithdrawn
from sluice_pod_watcher.core.cluster import events as e

ENDED = {
    "phase": "Succeeded",
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
}


@pytest.mark.parametrize("status", [0, 500, 504, 422])
@pytest.mark.parametrize("taken", [False, True])
def test_a_wiped_bus_is_not_asked_for_a_pod_of_which_nobody_knows_what_it_has(bench, status, taken):
    """It would be given a second slice, on another node, while its pod runs on the first."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.calls.clear()
    if taken:
        bench.api.patch("train", call.patch)
    bench.bus.clear()
    bench.read()
    assert bench.bus == {}, "its patch is under way: whoever heard that all is said would take its slice back"
    bench.handle(e.PatchRefused(call.uid, "bind", status, "who knows"))
    bench.read()
    assert bench.bus == {}, "it may have been taken"
    bench.handle(e.PodRead(call.uid, bench.api.find("u1")))
    word = bench.word("u1")
    assert isinstance(word, AllocationRequested)
    assert (word.held is not None) == taken
    assert "sluice.source.cluster" in bench.bus


@pytest.mark.parametrize("status", [403, 429])
def test_a_pod_whose_patch_was_refused_for_sure_is_said_on_a_wiped_bus(bench, status):
    """Everything else would wait for it: its request, and that all requests are said."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    (call,) = bench.calls
    bench.bus.clear()
    bench.read()
    bench.handle(e.PatchRefused(call.uid, "bind", status, "no"))
    assert isinstance(bench.word("u1"), AllocationRequested)
    assert "sluice.source.cluster" in bench.bus


def test_a_pod_that_goes_while_it_is_bound_is_withdrawn_on_a_wiped_bus(bench):
    """Nobody would hear that all is said, ever."""
    bench.create("train", "u1")
    bench.automatic = False
    bench.bind("u1")
    bench.bus.clear()
    bench.read()
    bench.delete("u1")
    assert bench.word("u1") is None or isinstance(bench.word("u1"), RequestWithdrawn)
    assert "sluice.source.cluster" in bench.bus


def test_what_a_pod_had_is_not_unsaid_by_a_pod_watcher_that_never_saw_it_run(bench, new):
    """After a wipe its request would be released while its slice, on a node that does not answer, is not gone."""
    bench.create("train", "u1")
    bench.bind("u1")
    held = Held(node=NodeName("node-a"), allocation=AllocationId("u1_r_1"))
    pod = bench.api.find("u1")
    pod["status"] = dict(ENDED)
    bench.api.store(pod)
    other = new(bench.api, {}, run="w2")
    other.start()
    said = RequestWithdrawn(revision=1, source="cluster", cause="containers ended", held=held)
    other.observe(subjects.request(RequestId("u1")), said)
    assert other.word("u1") == said
