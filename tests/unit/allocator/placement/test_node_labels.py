"""Labels that pods select nodes by: classes of nodes stay few, however large the fleet grows."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Grant, HostFacts, HostNeeds, NodeRemoved
from sluice_allocator.core.placement.index import device_index

LABEL = "kubernetes.io/hostname"


def joins(bench: Bench, name: str) -> None:
    facts = HostFacts(cpu_cores=8.0, memory_mib=64_000, pods_free=10, labels={LABEL: name, "zone": "a"})
    bench.observe(subjects.host(NodeName(name)), facts)
    bench.add_node(snapshot(name, (gpu_report(name, 0),)))


def where(bench: Bench, name: str, **labels: str) -> str:
    """The node that a pod is put on which wants these labels."""
    request = replace(asked(name, claim()), host=HostNeeds(node_selector=labels))
    (grant,) = [w.message for w in bench.land_all(bench.request(request)) if isinstance(w.message, Grant)]
    return grant.booking.node


def test_a_label_comes_to_be_one_of_single_nodes_when_the_fleet_grows(empty: Bench, monkeypatch: pytest.MonkeyPatch):
    """Somebody selected by host name while there were few: each decision would look at a class for each node."""
    monkeypatch.setattr(device_index, "VALUES_PER_KEY_MAX", 3)
    for number in range(3):
        joins(empty, f"node-{number}")
    assert where(empty, "first", **{LABEL: "node-1"}) == "node-1"
    assert where(empty, "zoned", zone="a")
    kept = empty.allocator.ctx.cluster.index
    assert len(kept.classes) >= 3
    for number in range(3, 9):
        joins(empty, f"node-{number}")
    assert len(kept.classes) <= 2  # one is of nodes of which nothing is said yet
    for number in range(9):
        assert where(empty, f"pod-{number}", **{LABEL: f"node-{number}"}) == f"node-{number}"
        assert where(empty, f"both-{number}", **{LABEL: f"node-{number}", "zone": "a"}) == f"node-{number}"
    assert where(empty, "any", zone="a")


def test_nodes_that_come_and_go_leave_no_classes(empty: Bench, monkeypatch: pytest.MonkeyPatch):
    """An autoscaler gives each node a name of its own: what was once would be looked at by each decision for ever."""
    monkeypatch.setattr(device_index, "VALUES_PER_KEY_MAX", 3)
    joins(empty, "node-0")
    assert where(empty, "first", **{LABEL: "node-0"}) == "node-0"
    for number in range(1, 9):
        joins(empty, f"node-{number}")
        removed = NodeRemoved(node=NodeName(f"node-{number}"), cause="scaled down")
        empty.land_all(empty.observe(subjects.node(NodeName(f"node-{number}")), removed))
    assert len(empty.allocator.ctx.cluster.index.classes) <= 3
    assert where(empty, "last", **{LABEL: "node-0"}) == "node-0"
