"""What an event costs does not depend on how many pods and nodes there are."""

from api_model import new_node, new_pod
from factories.calls import calls_of

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import SourceSynced
from sluice_pod_watcher.core.cluster import events as e


def counted(bench, *functions):
    """The list of how many calls, of these functions or of all, each event takes from now on."""
    handle, calls = bench.core.handle, []

    def counting(event, now):
        found = []
        calls.append(calls_of(lambda: found.extend(handle(event, now)), *functions))
        return found

    bench.core.handle = counting
    return calls


def one_pod_among(new, pods):
    bench = new().start()
    for number in range(pods):
        bench.create(f"p{number}", f"u{number}")
    bench.list_nodes(*(new_node(f"n{number}") for number in range(pods)))
    bench.pass_time(100)  # until all of them show that no allocator has answered

    def live():
        bench.change("u3", status={"phase": "Pending", "reason": "x"})
        bench.bind("u3")
        bench.pass_time(0.5)
        bench.delete("u3")

    calls = counted(bench)
    live()
    assert sum(calls) > 100, "nothing was counted"
    return sum(calls)


def test_a_pod_costs_the_same_among_a_hundred_times_as_many(new):
    """mig-adapter 7: each message of a pod listed all nodes and pods. A large cluster would make that fall behind."""
    assert one_pod_among(new, 1000) <= one_pod_among(new, 10) + 10


def test_a_heartbeat_in_which_nothing_changes_is_not_read(bench):
    """5,000 kubelets report 500 times a second: the watcher would do nothing else."""
    bench.list_nodes(new_node("n1"))
    bench.pass_time(2)
    words = len(bench.words)
    reads = lambda seen: calls_of(lambda: bench.core.handle(e.Seen("nodes", seen), bench.now), "_read_node")  # noqa: E731
    assert reads(new_node("n2", 2)) == 1
    beat = new_node("n1", 3)
    beat["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]
    assert reads(beat) == 0
    bench.pass_time(2)
    assert [subject for subject, _ in bench.words[words:] if subject == "sluice.host.n1"] == []


def test_pods_that_were_there_before_do_not_make_a_new_one_wait(new):
    """After a restart among 10,000 waiting pods none would be bound before all of them were processed."""
    before = new().start()
    for number in range(1000):
        before.create(f"p{number}", f"u{number}")
    before.api.store(new_pod("fresh", "fresh"))
    bench = new(before.api, before.bus, run="w2")
    bench.read()
    bench.list_others()
    handle, left, asked = bench.core.handle, [], []

    def observed(event, now):
        found = handle(event, now)
        asked.extend(len(left) for each in found if isinstance(each, Write) and each.subject == "sluice.request.fresh")
        left.append(any(isinstance(each, e.Continue) for each in found))
        return found

    bench.core.handle = observed
    bench.list()
    assert asked == [left.index(True)], "the new one is asked for in the first turn"
    assert left.count(True) >= 3, "1,001 pods in turns of 250"
    assert left[-1] is False
    assert isinstance(bench.bus["sluice.source.cluster"], SourceSynced)
    assert bench.bus["sluice.source.cluster"].count == 1001


def test_a_bus_that_is_read_again_takes_no_long_turn(bench):
    """Every pod would be gone through in one step, and the broker would take the watcher for dead."""
    for number in range(1000):
        bench.create(f"p{number}", f"u{number}")
    spoken = counted(bench, "word")
    bench.read()
    assert sum(spoken) >= 1000, "all were compared"
    assert max(spoken) <= 250
