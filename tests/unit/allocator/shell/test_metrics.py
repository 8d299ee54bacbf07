"""What an allocator shows to those who watch it: numbers that an alert is built on must be true."""

from factories.scheduling.allocator import asked, claim, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import NodeInventory
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.shell.metrics import AllocatorMetrics


def shown(bench) -> dict[tuple[str, ...], float]:
    counts = MetricRegistry()
    with counts.collecting_from(AllocatorMetrics(bench.allocator).now):
        return {(m.name, *labels): value for m, series in counts.samples().items() for labels, value in series.items()}


def test_who_watches_sees_who_waits_for_what_and_how_long(bench):
    """A queue that stands still is seen before its users call: by mode, profile and reason, and for how long."""
    bench.bound("first", claim(profile="7g.40gb"))
    for name in ("second", "third"):
        (told,) = bench.land_all(bench.request(asked(name, claim(profile="7g.40gb"))))
        bench.observe(subjects.waiting(RequestId(name)), told.message, told.operation)
    bench.now += 100.0
    found = shown(bench)
    assert {name: value for name, value in found.items() if name[0].startswith("sluice_queue")} == {
        ("sluice_queue_requests", "exclusive", "7g.40gb"): 2,
        ("sluice_queue_first_waits_seconds", "exclusive", "7g.40gb"): 0,  # no event has told it of the time
        ("sluice_queue_outside",): 0,
    }
    bench.handle(LeaseChanged(held=True))
    assert shown(bench)["sluice_queue_first_waits_seconds", "exclusive", "7g.40gb"] == 100.0
    assert {name: value for name, value in found.items() if name[0] == "sluice_requests"} == {
        ("sluice_requests", "asked"): 3,
        ("sluice_requests", "bound"): 1,
        ("sluice_requests", "refused"): 0,
        ("sluice_requests", "rejected"): 0,
        ("sluice_requests", "waiting"): 2,
    }
    waiting = {name[1]: value for name, value in found.items() if name[0] == "sluice_requests_waiting"}
    assert sum(waiting.values()) == 2
    assert found["sluice_ledger_entries", "Grant"] == 1
    assert found["sluice_slices", "ready"] == 1


def test_a_node_that_may_not_be_used_is_not_counted_as_open(bench):
    """Stale and removed nodes are seen as such, and an allocator that stands by does not say that it works."""
    assert {name[1]: value for name, value in shown(bench).items() if name[0] == "sluice_nodes"} == {
        "open": 1,
        "unopened": 0,
        "stale": 0,
        "removed": 0,
        "cordoned": 0,
    }
    stale = NodeInventory(snapshot=snapshot("node-a", ()), stale=True)
    bench.observe(subjects.inventory(NodeName("node-a")), stale)
    found = shown(bench)
    assert (found["sluice_nodes", "open"], found["sluice_nodes", "stale"]) == (0, 1)
    assert found["sluice_allocator_works",] == 1
    bench.handle(LeaseChanged(held=False))
    assert shown(bench)["sluice_allocator_works",] == 0
