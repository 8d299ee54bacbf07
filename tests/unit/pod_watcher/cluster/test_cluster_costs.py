"""What an event costs does not depend on how many pods and nodes there are."""

from api_model import new_pod
from factories.calls import calls_of

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import SourceSynced
from sluice_pod_watcher.core.cluster import events as e


def one_pod_among(new, pods):
    bench = new()
    bench.start()
    for number in range(pods):
        bench.create(f"p{number}", f"u{number}")
    bench.handle(e.ListingStarted("nodes"))
    for number in range(pods):
        bench.handle(e.Seen("nodes", {"metadata": {"name": f"n{number}", "resourceVersion": "1"}, "status": {}}))
    bench.handle(e.ListingEnded("nodes", "1"), e.ListingStarted("others"), e.ListingEnded("others", "1"))
    bench.pass_time(100)  # until all of them show that no allocator has answered

    def live():
        bench.change("u3", status={"phase": "Pending", "reason": "x"})
        bench.bind("u3")
        bench.pass_time(0.5)
        bench.delete("u3")

    core = bench.core.handle
    total = 0

    def counted(event, now):
        nonlocal total
        found = []
        total += calls_of(lambda: found.extend(core(event, now)))
        return found

    bench.core.handle = counted
    live()
    assert total > 100, "nothing was counted"
    return total


def test_a_pod_costs_the_same_among_a_hundred_times_as_many(new):
    """mig-adapter 7: each word of a pod listed all nodes and pods. A large cluster would make that fall behind."""
    assert one_pod_among(new, 1000) <= one_pod_among(new, 10) + 10


def node_of(number, version, beat):
    return {
        "metadata": {"name": f"n{number}", "resourceVersion": str(version), "labels": {"zone": "a"}},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}, "beat": beat},
    }


def test_a_heartbeat_in_which_nothing_changes_is_not_read(bench):
    """5,000 kubelets report 500 times a second: the watcher would do nothing else."""
    bench.handle(e.ListingStarted("nodes"), e.Seen("nodes", node_of(1, 1, 0)), e.ListingEnded("nodes", "1"))
    bench.handle(e.ListingStarted("others"), e.ListingEnded("others", "1"))
    bench.pass_time(2)
    words = len(bench.words)
    reads = lambda seen: calls_of(lambda: bench.core.handle(e.Seen("nodes", seen), bench.now), "_read_node")  # noqa: E731
    assert reads(node_of(2, 2, 0)) == 1
    assert reads(node_of(1, 3, 1)) == 0
    bench.pass_time(2)
    assert [subject for subject, _ in bench.words[words:] if subject == "sluice.host.n1"] == []


def test_pods_that_were_there_before_do_not_make_a_new_one_wait(new):
    """After a restart among 10,000 waiting pods none would be bound before all of them were processed."""
    before = new()
    before.start()
    for number in range(1000):
        before.create(f"p{number}", f"u{number}")
    before.api.store(new_pod("fresh", "fresh"))
    bench = new(before.api, before.bus, run="w2")
    bench.read()
    bench.list_others()
    listed = [
        e.ListingStarted("pods"),
        *(e.Seen("pods", each) for each in before.api.pods.values()),
        e.ListingEnded("pods", "99999"),
    ]
    handle, left, asked = bench.core.handle, [], []

    def counted(event, now):
        found = handle(event, now)
        asked.extend(len(left) for each in found if isinstance(each, Write) and each.subject == "sluice.request.fresh")
        left.append(any(isinstance(each, e.Continue) for each in found))
        return found

    bench.core.handle = counted
    bench.handle(*listed)
    assert asked == [left.index(True)], "the new one is asked for in the first turn"
    assert left.count(True) >= 3, "1,001 pods in turns of 250"
    assert left[-1] is False
    assert isinstance(bench.bus["sluice.source.cluster"], SourceSynced)
    assert bench.bus["sluice.source.cluster"].count == 1001


def test_a_bus_that_is_read_again_takes_no_long_turn(bench):
    """Every pod would be gone through in one step, and the broker would take the watcher for dead."""
    for number in range(1000):
        bench.create(f"p{number}", f"u{number}")
    handle, spoken = bench.core.handle, []

    def counted(event, now):
        found = []
        spoken.append(calls_of(lambda: found.extend(handle(event, now)), "word"))
        return found

    bench.core.handle = counted
    bench.read()
    assert sum(spoken) >= 1000, "all were compared"
    assert max(spoken) <= 250
