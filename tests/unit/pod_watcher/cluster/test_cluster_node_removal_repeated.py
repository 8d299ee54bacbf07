"""A removal is published again if a server lost it before syncing it (PROTOCOL §1)."""

from test_cluster_node_removal import GRACE_S, REMOVED, cluster, node, said

from sluice_pod_watcher.core.cluster import events as e

__all__ = ["cluster"]


def test_a_removal_that_was_said_over_nothing_and_forgotten_is_said_again(cluster):
    """After a wipe its agent has not reported, so only this shows the removal: its grants would stay booked forever."""
    cluster.handle(e.Gone("nodes", node(version=3)))
    cluster.pass_time(2)
    cluster.bus.clear()
    cluster.life = "2"
    cluster.read()
    cluster.pass_time(GRACE_S + 2)
    assert cluster.bus.pop("sluice.node.n1") == REMOVED
    cluster.read()
    cluster.pass_time(GRACE_S + 2)
    assert said(cluster) == REMOVED


def test_one_that_has_expired_is_not(cluster):
    cluster.handle(e.Gone("nodes", node(version=3)))
    cluster.pass_time(GRACE_S + 2)
    assert cluster.bus.pop("sluice.node.n1") == REMOVED
    cluster.now += cluster.core.config.closing_ttl_s
    cluster.read()
    cluster.pass_time(GRACE_S * 2)
    assert said(cluster) is None
