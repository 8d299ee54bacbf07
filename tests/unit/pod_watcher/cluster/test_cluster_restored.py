"""The API server comes back from a backup, or asks for patience: nothing that was known may stand against it."""

from api_model import new_node

from sluice.contracts.messages import AllocationRequested, RequestWithdrawn
from sluice_pod_watcher.core.cluster import events as e


def restored(bench, *pods):
    """A listing of an API server whose versions are smaller than they were."""
    shown = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": str(at + 1)}} for at, pod in enumerate(pods)]
    bench.api.pods = {pod["metadata"]["name"]: pod for pod in shown}
    seen = [e.Seen("pods", each) for each in shown]
    bench.handle(e.ListingStarted("pods", went_back=True), *seen, e.ListingEnded("pods", "3"))


def test_a_pod_that_waits_again_is_bound_again(bench):
    """Its gate would stay shut: the object looks older than what is known of it."""
    bench.create("train", "u1")
    before = bench.api.find("u1")
    bench.bind("u1")
    assert bench.annotations("u1")
    restored(bench, before)
    assert bench.annotations("u1"), "its slice was written to it once more"
    assert isinstance(bench.word("u1"), AllocationRequested)


def test_a_pod_that_the_backup_does_not_have_is_given_up(bench):
    bench.grant("train", "u1")
    restored(bench)
    assert isinstance(bench.word("u1"), RequestWithdrawn)


def test_a_pod_that_was_over_and_is_back_is_told_of(bench):
    bench.create("train", "u1")
    before = bench.api.find("u1")
    bench.delete("u1")
    bench.release("u1")
    bench.pass_time(1)
    bench.told.clear()
    restored(bench, before)
    assert [each for each in bench.told if "restored from a backup" in each and "delete the pod" in each]


def test_a_node_of_a_backup_counts(bench):
    bench.list_nodes(new_node("n1", 90))
    bench.pass_time(2)
    before = e.Seen("nodes", new_node("n1", 5, cpu="4"))
    bench.handle(e.ListingStarted("nodes", went_back=True), before, e.ListingEnded("nodes", "6"))
    bench.pass_time(2)
    assert bench.bus["sluice.host.n1"].cpu_cores == 4


def test_a_patch_is_not_tried_again_before_the_api_server_wants_it(bench):
    bench.automatic = False
    bench.grant("train", "u1")
    (first,) = [each for each in bench.calls if isinstance(each, e.BindPod)]
    bench.calls.clear()
    bench.handle(e.Failed(first, 429, "too many requests", retry_after_s=9.0))
    bench.pass_time(8)
    assert e.BindPod not in map(type, bench.calls)
    bench.pass_time(4)
    assert e.BindPod in map(type, bench.calls)
