"""When a node's deletion counts, and when it does not (PROTOCOL §6); and when it is published again (§1)."""

import pytest
from api_model import new_node
from factories.scheduling.allocator import news_of, snapshot
from msgspec.structs import replace
from test_cluster_node_capacity import NO_ROOM

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RunId
from sluice.contracts.messages import HostFacts, NodeChanged, NodeInventory, NodeRemoved
from sluice_pod_watcher.core.cluster import events as e

N1 = NodeName("n1")
GRACE_S = 300
REMOVED = NodeRemoved(node=N1, cause="its Node object was deleted")


def news(run="a1") -> NodeChanged:
    return news_of(snapshot(N1, (), agent_run=RunId(run)))


def inventory(*, stale: bool) -> NodeInventory:
    return NodeInventory(snapshot=snapshot(N1, (), agent_run=RunId("a1")), stale=stale)


@pytest.fixture
def cluster(bench):
    """A pod-watcher that knows n1, whose agent has published and does not answer any more."""
    bench.list_nodes(new_node("n1"))
    bench.observe(subjects.node(N1), news())
    bench.observe(subjects.inventory(N1), inventory(stale=True))
    bench.pass_time(2)
    return bench


def said(bench):
    return bench.bus.get("sluice.node.n1")


def test_a_node_that_is_registered_again_is_not_removed(cluster):
    """A kubelet does so in seconds after its object was deleted by mistake. Each absence counts by itself."""
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.pass_time(GRACE_S - 10)
    cluster.handle(e.Seen("nodes", new_node("n1", 4)), e.Gone("nodes", new_node("n1", 5)))
    cluster.pass_time(GRACE_S - 10)
    assert said(cluster) == news()
    cluster.handle(e.Seen("nodes", new_node("n1", 6)))
    cluster.pass_time(GRACE_S * 2)
    assert said(cluster) == news()
    assert cluster.bus["sluice.host.n1"].cpu_cores == 8


def test_a_node_whose_agent_answers_is_not_removed(cluster):
    """It gives its slices back itself, one by one, as their pods go."""
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.observe(subjects.inventory(N1), inventory(stale=False))
    cluster.pass_time(GRACE_S * 2)
    assert said(cluster) == news()
    cluster.observe(subjects.inventory(N1), inventory(stale=True))
    cluster.pass_time(2)
    assert said(cluster) == REMOVED


def test_a_removed_node_that_speaks_again_has_no_room_without_its_object(cluster):
    """Pods would be pinned to a node on which no kubelet starts them."""
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.pass_time(GRACE_S + 5)
    del cluster.bus["sluice.host.n1"]  # its time to live is over
    cluster.observe(subjects.node(N1), news(run="a2"))
    cluster.pass_time(1)
    assert cluster.bus["sluice.host.n1"] == NO_ROOM
    cluster.pass_time(GRACE_S - 5)
    assert said(cluster) == news(run="a2")
    cluster.pass_time(10)
    assert said(cluster) == REMOVED


def test_a_node_that_was_deleted_unobserved_is_removed_too(new):
    """Its host facts would promise room for ever, and its grants would stay."""
    told = HostFacts(cpu_cores=8.0, memory_mib=1, pods_free=1, source="cluster")
    bench = new(bus={"sluice.host.n1": told, "sluice.node.n1": news()}).start()
    bench.pass_time(GRACE_S * 2)
    assert said(bench) == news()  # nodes were not listed yet
    bench.list_nodes()
    bench.pass_time(2)
    assert bench.bus["sluice.host.n1"] == NO_ROOM
    bench.pass_time(GRACE_S)
    assert said(bench) == REMOVED


def test_a_node_of_another_cluster_on_the_same_bus_is_left_alone(new):
    told = HostFacts(cpu_cores=8.0, memory_mib=1, pods_free=1, source="another")
    bench = new(bus={"sluice.host.n1": told, "sluice.node.n1": news()}).start()
    bench.list_nodes()
    bench.pass_time(GRACE_S * 2)
    assert (said(bench), bench.bus["sluice.host.n1"]) == (news(), told)


def test_a_node_that_our_pods_remember_is_removed_after_the_bus_was_wiped(bench):
    bench.list_nodes()
    bench.create("jp", "u1")
    bench.bind("u1", node="n1")
    bench.bus.clear()
    bench.read()
    bench.list()
    bench.pass_time(GRACE_S + 5)
    assert said(bench) == REMOVED


@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "restarted"])
def test_nothing_is_left_on_the_bus_of_a_node_that_was_removed(cluster, new, restarted):
    """Room on the bus, and time at every start, for each node that ever was: a cluster that scales makes thousands."""
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.pass_time(GRACE_S + 5)
    assert said(cluster) == REMOVED
    cluster.observe(subjects.host(N1), NO_ROOM)  # what was said is read, too
    cluster.pass_time(5)
    watcher = cluster
    if restarted:
        watcher = new(cluster.api, cluster.bus, run="w2").start()
        watcher.list_nodes()
        watcher.pass_time(GRACE_S + 5)
        assert not any(isinstance(message, NodeRemoved) for _, message in watcher.words), "it was said before"
    watcher.now += watcher.core.config.closing_ttl_s
    del watcher.bus["sluice.host.n1"], watcher.bus["sluice.node.n1"]  # their time to live is over
    watcher.read()
    watcher.pass_time(5)
    assert "sluice.host.n1" not in watcher.bus


def test_a_removal_that_was_said_over_nothing_and_forgotten_is_said_again(cluster):
    """After a wipe its agent has not reported, so only this shows the removal: its grants would stay booked forever."""
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.pass_time(2)
    cluster.bus.clear()
    cluster.life = "2"
    cluster.read()
    cluster.pass_time(GRACE_S + 2)
    assert cluster.bus.pop("sluice.node.n1") == REMOVED
    cluster.read()
    cluster.pass_time(GRACE_S + 2)
    assert said(cluster) == REMOVED


def test_a_removal_that_has_expired_is_not_said_again(cluster):
    cluster.handle(e.Gone("nodes", new_node("n1", 3)))
    cluster.pass_time(GRACE_S + 2)
    assert cluster.bus.pop("sluice.node.n1") == REMOVED
    cluster.now += cluster.core.config.closing_ttl_s
    cluster.read()
    cluster.pass_time(GRACE_S * 2)
    assert said(cluster) is None


def test_a_node_that_an_operator_removed_while_it_answered_can_be_removed_again(bench):
    """It published once more, and was never pulled again: the inventory says of it only that it was removed."""
    bench.list_nodes(new_node("n1"))
    bench.observe(subjects.node(N1), news())
    bench.create("jp", "u1")
    bench.bind("u1", node="n1")
    bench.pass_time(2)
    bench.observe(subjects.inventory(N1), inventory(stale=False))
    bench.observe(subjects.node(N1), REMOVED)
    bench.observe(subjects.inventory(N1), replace(inventory(stale=True), removed=True))
    bench.observe(subjects.node(N1), news(run="a2"))
    bench.handle(e.Gone("nodes", new_node("n1", 3)))
    bench.pass_time(GRACE_S * 3)
    assert said(bench) == REMOVED
