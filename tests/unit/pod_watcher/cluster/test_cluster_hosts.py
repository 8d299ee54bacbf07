"""What a pod may count on when it is pinned to a node."""

import msgspec
import pytest

from sluice.contracts.messages import HostFacts, HostRoom, Taint
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.shell.kube.watching import room_only

GIB = 1024
NO_ROOM = HostFacts(cpu_cores=0.0, memory_mib=0, pods_free=0, cordoned=True, source="cluster")


def node(name="n1", version=1, *, cpu="8", memory="16Gi", pods="10", labels=None, **spec):
    """A Node object."""
    return {
        "metadata": {"name": name, "resourceVersion": str(version), "labels": labels or {"zone": "a"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, "nvidia.com/gpu": "8", "example.com/nic": "2"}
        },
    }


def other(uid, version=1, *, at="n1", cpu="500m", phase="Running", nic=""):
    """A pod that is none of ours."""
    limits = {"example.com/nic": nic} if nic else {}
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": limits}
    return {
        "metadata": {"uid": uid, "name": uid, "namespace": "x", "resourceVersion": str(version)},
        "spec": {"nodeName": at, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.fixture
def hosts(bench):
    """A pod-watcher that knows one node and no other pods."""
    bench.handle(e.ListingStarted("nodes"), e.NodeSeen(node()), e.ListingEnded("nodes", "1"))
    bench.handle(e.ListingStarted("others"), e.ListingEnded("others", "1"))
    return bench


def facts(bench, name="n1"):
    """What was said of a node."""
    bench.pass_time(2)
    return bench.bus.get(f"sluice.host.{name}")


def test_a_node_is_said_with_what_others_leave(hosts):
    """A pod would be pinned where the scheduler cannot place it."""
    hosts.handle(e.OtherPodSeen(other("p1", nic="1")), e.OtherPodSeen(other("p2")))
    assert facts(hosts) == HostFacts(
        cpu_cores=7.0,
        memory_mib=14 * GIB,
        pods_free=8,
        resources={"example.com/nic": 1},
        labels={"zone": "a"},
        source="cluster",
        allocatable=HostRoom(cpu_milli=8000, memory_mib=16 * GIB, resources={"example.com/nic": 2}),
    )


def test_what_a_pod_requests_as_a_whole_is_taken(hosts):
    """A node that is full would look empty, and a pod be pinned where the scheduler cannot place it."""
    whole = other("p1")
    whole["spec"]["resources"] = {"requests": {"cpu": "6", "memory": "10Gi"}}
    hosts.handle(e.OtherPodSeen(room_only(msgspec.json.encode(whole))))
    said = facts(hosts)
    assert (said.cpu_cores, said.memory_mib) == (2.0, 6 * GIB)


def test_what_is_over_moved_or_gone_takes_nothing(hosts):
    """A node would look full for ever."""
    for number in range(4):
        hosts.handle(e.OtherPodSeen(other(f"p{number}")))
    hosts.handle(
        e.OtherPodSeen(other("p0", 2, phase="Succeeded")),
        e.OtherPodGone(other("p1", 2)),
        e.OtherPodSeen(other("p2", 2, cpu="1")),
        e.OtherPodSeen(other("p2", 1, cpu="4")),
    )
    hosts.handle(e.ListingStarted("others"), e.OtherPodSeen(other("p2", 2, cpu="1")), e.ListingEnded("others", "9"))
    assert (facts(hosts).cpu_cores, facts(hosts).pods_free) == (7.0, 9)


def test_cordon_taints_and_labels_are_said(hosts):
    """A pod would be pinned to a node that takes none."""
    taints = [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    hosts.handle(e.NodeSeen(node(version=2, unschedulable=True, taints=taints, labels={"zone": "b"})))
    found = facts(hosts)
    assert (found.cordoned, found.taints, found.labels) == (True, (Taint(key="a", value="b"),), {"zone": "b"})


def test_a_deleted_node_has_no_room(hosts):
    """Pods would be pinned to a node that does not come back."""
    facts(hosts)
    hosts.handle(e.NodeGone(node(version=3)))
    assert facts(hosts) == NO_ROOM


def test_nothing_is_promised_before_all_pods_were_listed(new):
    """After a start every node would look empty for a moment."""
    bench = new()
    bench.read()
    bench.list()
    bench.handle(e.ListingStarted("nodes"), e.NodeSeen(node()), e.ListingEnded("nodes", "1"))
    assert facts(bench) is None


def test_a_busy_node_is_said_at_a_bounded_rate(hosts):
    """A node where pods come and go would flood the bus."""
    facts(hosts)
    said = len([subject for subject, _ in hosts.words if "host" in subject])
    for number in range(40):
        hosts.handle(e.OtherPodSeen(other(f"p{number % 5}", number + 2, cpu=f"{number + 1}m")))
        hosts.pass_time(0.5)
    assert len([subject for subject, _ in hosts.words if "host" in subject]) - said <= 21
    assert facts(hosts).pods_free == 5


def test_heartbeats_of_a_node_are_no_news(hosts):
    """Every kubelet reports every few seconds."""
    facts(hosts)
    words = len(hosts.words)
    for version in range(2, 20):
        hosts.handle(e.NodeSeen(node(version=version)))
        hosts.pass_time(2)
    assert len(hosts.words) == words
