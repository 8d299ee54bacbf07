"""The placeholder pods that stand for missing nodes: one for each, as long as it is missing."""

from itertools import count

import pytest
from conftest import listing
from factories.scheduling.allocator import snapshot

from sluice.contracts.ids import NodeName, SourceName
from sluice.contracts.kube.names import LABEL_CAPACITY
from sluice.contracts.messages import HostRoom, NodeInventory, NodeTemplate, PoolDemand, Taint
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.placeholders.placeholders import Placeholders, is_placeholder

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CONFIG = ClusterConfig(placeholders_max=5)
TEMPLATE = NodeTemplate(
    labels={"zone": "a"},
    taints=(Taint(key="nvidia.com/gpu", value="present"), Taint(key="spot", effect="NoExecute")),
    room=HostRoom(cpu_milli=10_000, memory_mib=1000),
)


class Cluster:
    """The API server and the bus of one cluster's placeholders."""

    def __init__(self) -> None:
        self.placeholders, self.now = Placeholders(CONFIG), 1000.0
        self.pods: dict[str, dict] = {}
        self.uids = count(1)
        self.refuses = False
        self.lists()
        self.placeholders.stream_read()

    def shows(self, *events: e.ObjectEvent) -> None:
        for event in events:
            self.placeholders.handle(event, self.now)

    def lists(self, *pods: dict) -> None:
        self.shows(*listing("others", pods, "1"))

    def missing(self, nodes: int, pool: str = "gpu", source: str = "cluster") -> None:
        selector = {"pool": pool}
        demand = PoolDemand(pool=pool, source=SourceName(source), selector=selector, template=TEMPLATE, missing=nodes)
        self.placeholders.pool(demand)

    def turn(self, seconds: float = 1.0) -> list[str]:
        """Time passes; the names of the placeholders that are there then."""
        self.now += seconds
        for _ in range(3):
            for wanted in list(self.placeholders.due(self.now)):
                self._carry_out(wanted)
        return sorted(self.pods)

    def schedule(self, name: str, node: str) -> None:
        self.pods[name]["spec"]["nodeName"] = node
        self.shows(e.Seen("others", self.pods[name]))

    def answers(self, node: str) -> None:
        self.placeholders.inventory(NodeInventory(snapshot=snapshot(node, ()), stale=False), self.now)

    def _carry_out(self, wanted: e.CreatePlaceholder | e.DeletePlaceholder) -> None:
        if self.refuses:
            self.placeholders.failed(wanted.name, self.now)
        elif isinstance(wanted, e.CreatePlaceholder):
            assert wanted.name not in self.pods, "created twice"
            made = {**wanted.body, "metadata": {**wanted.body["metadata"], "uid": f"u{next(self.uids)}"}}
            self.pods[wanted.name] = made
            self.placeholders.written(e.Done(wanted, made), self.now)
        else:
            gone = self.pods.pop(wanted.name)
            assert gone["metadata"]["uid"] == wanted.uid
            self.placeholders.written(e.Done(wanted), self.now)
            self.shows(e.Gone("others", gone))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def names(*numbers: int, pool: str = "gpu") -> list[str]:
    return [f"sluice-capacity-{pool}-{number}" for number in numbers]


def test_there_is_one_for_each_missing_node_and_none_when_none_is(cluster: Cluster) -> None:
    for missing, there in ((0, ()), (2, (0, 1)), (3, (0, 1, 2)), (1, (0,)), (0, ())):
        cluster.missing(missing)
        assert cluster.turn() == names(*there)


def test_it_fits_on_a_new_node_of_its_pool_and_on_no_other(cluster: Cluster) -> None:
    """Labels and taints of the pool, most of its room, no node with slices, below every other pod."""
    cluster.missing(1)
    (name,) = cluster.turn()
    spec = cluster.pods[name]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "6000m", "memory": "600Mi"}
    assert spec["priorityClassName"] == "sluice-capacity"
    (term,) = spec["affinity"]["podAntiAffinity"][REQUIRED]
    assert term["labelSelector"] == {"matchLabels": {"sluice.dev/managed": "true"}}
    assert term["namespaceSelector"] == {}
    assert "nodeAffinity" not in spec["affinity"]


def test_one_on_a_node_that_starts_stands_for_it_until_pods_are_there(cluster: Cluster) -> None:
    """Without it a second machine would be added while the first one's agent starts."""
    cluster.missing(2)
    cluster.turn()
    cluster.schedule(names(1)[0], "new")
    assert cluster.turn(600) == names(0, 1)
    cluster.answers("new")
    assert cluster.turn() == names(0, 1)
    cluster.missing(1)
    assert cluster.turn() == names(0), "the one on the node that has joined goes, the other node is still missing"


def test_a_node_that_does_not_serve_what_waits_holds_up_no_other(cluster: Cluster) -> None:
    """Its GPUs may be broken, say: the autoscaler would see no pod without a node."""
    cluster.missing(1)
    cluster.turn()
    cluster.answers("useless")
    cluster.schedule(names(0)[0], "useless")
    cluster.turn(CONFIG.placeholder_settles_s - 2)
    assert cluster.pods[names(0)[0]]["spec"].get("nodeName")
    (name,) = cluster.turn(2)
    (term,) = cluster.pods[name]["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["useless"]}]
    cluster.placeholders.node_gone(NodeName("useless"))
    cluster.missing(2)
    (other,) = set(cluster.turn()) - {name}
    assert "nodeAffinity" not in cluster.pods[other]["spec"]["affinity"]


def test_all_pools_together_have_a_bounded_number(cluster: Cluster) -> None:
    cluster.missing(4, "a")
    cluster.missing(4, "b")
    assert cluster.turn() == [*names(0, 1, 2, 3, pool="a"), *names(0, pool="b")]


def test_those_of_a_predecessor_are_taken_over_or_removed(cluster: Cluster) -> None:
    """After a restart only the API server remembers them."""
    cluster.missing(2)
    cluster.missing(1, "old")
    cluster.turn()
    following = Cluster()
    following.pods = dict(cluster.pods)
    following.lists(*cluster.pods.values())
    following.missing(2)
    assert following.turn() == names(0, 1)


def test_a_deleted_one_is_created_again(cluster: Cluster) -> None:
    """Whether that was seen as it happened, or in a later listing."""
    cluster.missing(2)
    cluster.turn()
    cluster.shows(e.Gone("others", cluster.pods.pop(names(0)[0])))
    assert cluster.turn() == names(0, 1)
    cluster.lists(cluster.pods[names(0)[0]])
    del cluster.pods[names(1)[0]]
    assert cluster.turn() == names(0, 1)


def test_a_refused_write_is_tried_again_after_a_pause(cluster: Cluster) -> None:
    """Without the rights each try would be a line in the log."""
    cluster.refuses = True
    cluster.missing(1)
    assert not cluster.turn()
    cluster.refuses = False
    assert not cluster.turn(CONFIG.placeholder_retry_s - 1)
    assert cluster.turn(2) == names(0)


def test_nothing_is_created_for_another_cluster_nor_before_all_is_known(cluster: Cluster) -> None:
    """Two clusters on one bus, and a bus that is being read."""
    cluster.missing(1, source="other")
    assert not cluster.turn()
    cluster.missing(1)
    cluster.placeholders.reading_started()
    assert not cluster.turn()
    cluster.placeholders.stream_read()
    assert not cluster.turn(), "the new bus has no such pool"


def test_a_pod_of_a_user_is_no_placeholder() -> None:
    """What it takes of its node would not count."""
    pod = {"metadata": {"namespace": "default", "labels": {LABEL_CAPACITY: "gpu"}}}
    assert not is_placeholder(pod, CONFIG.namespace)
