"""What an event costs does not depend on how many pods and nodes there are."""

import sys

from sluice_pod_watcher.core.cluster import events as e


def calls_of(work):
    """How many Python functions run meanwhile: the same on every machine, unlike time."""
    count = 0

    def tally(_frame, what, _argument):
        nonlocal count
        count += what == "call"

    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def one_pod_among(new, pods):
    """What the core does for one pod among so many."""
    bench = new()
    bench.start()
    for number in range(pods):
        bench.create(f"p{number}", f"u{number}")
    bench.handle(e.ListingStarted("nodes"))
    for number in range(pods):
        bench.handle(e.NodeSeen({"metadata": {"name": f"n{number}", "resourceVersion": "1"}, "status": {}}))
    bench.handle(e.ListingEnded("nodes", "1"), e.ListingStarted("others"), e.ListingEnded("others", "1"))
    bench.pass_time(10)

    def live():
        """A pod runs, ends, or is restarted."""
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
    """A large cluster would make its own watcher fall behind, and every pod wait."""
    assert one_pod_among(new, 1000) <= one_pod_among(new, 10) + 10
