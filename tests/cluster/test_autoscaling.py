"""
Karpenter, with its provider for tests: what an autoscaler makes of pods that wait for a slice, and of placeholders.

How many placeholders there are, and when they go, `tests/kubernetes/test_autoscaling.py` looks at.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster.gpu_pods import until_waiting
from cluster.harness.binaries import build_extra
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, apply, listed, pod, read
from cluster.waiting import Unmet, until

from sluice.contracts.ids import SourceName
from sluice.contracts.messages import HostRoom, NodeTemplate, PoolDemand
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.placeholders.placeholders import placeholder_pod

PROCESS = "karpenter"
POOL = "none"
CRDS = ("pkg/apis/crds", "kwok/apis/crds")
TOO_MUCH = {"cpu": "200"}
"""No machine here has it."""
COMPONENT = Path(__file__).parents[2] / "deploy/kubernetes/components/autoscaling/added.yaml"
LABEL, TYPE = "node.kubernetes.io/instance-type", "c-16x-amd64-linux"
DEMAND = PoolDemand(
    pool="c16",
    source=SourceName("cluster"),
    selector={LABEL: TYPE},
    template=NodeTemplate(room=HostRoom(cpu_milli=15_000, memory_mib=30_000)),
)
"""Of a machine type that Karpenter's provider for tests offers."""


@pytest.fixture(scope="module")
def scaling(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with Karpenter and a pool that may not grow: it looks for room for pods, and starts no machine."""
    built = build_extra("karpenter")
    crds = [f"--filename={built.folder / 'manifests' / each}" for each in CRDS]
    control_plane = cluster.control_plane
    settings = {
        "KUBECONFIG": str(control_plane.folder / "admin.kubeconfig"),
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "PATH": os.environ["PATH"],
    }
    cluster.kubectl("apply", "--server-side", *crds)
    try:
        cluster.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s", timeout_s=70)
        control_plane.box.spawn(PROCESS, [built.executables["karpenter"]], settings)
        cluster.save()
        try:
            apply(cluster, "default", *_pool())
            yield cluster
        finally:
            for kind in ("nodepools", "nodeclaims", "kwoknodeclasses"):
                cluster.kubectl("delete", kind, "--all", "--timeout=60s", timeout_s=70)
            control_plane.box.end(PROCESS)
            cluster.save()
    finally:
        cluster.kubectl("delete", *crds, "--timeout=60s", timeout_s=70)


def test_an_autoscaler_looks_for_no_room_for_a_pod_that_waits_for_its_slice(
    installed: Cluster, scaling: Cluster, given_back: None, namespace: str
) -> None:
    """To the scheduler it is gated, not unschedulable. Karpenter does look at a plain pod that is too big for all."""
    del installed, given_back
    waiting = pod("gated", annotations={**PROFILE, "sluice.dev/gpu-model": "H100"})
    plain = pod("plain", annotations={})
    plain["spec"]["containers"][0]["resources"] = {"requests": TOO_MUCH}
    apply(scaling, namespace, waiting)
    until_waiting(scaling, namespace, ["gated"])
    apply(scaling, namespace, plain)

    def look() -> bool | Unmet:
        if found := _seen_by(scaling, namespace, "plain"):
            return bool(found)
        return Unmet(scaling.control_plane.box.log(PROCESS))

    until("Karpenter looks for room for the plain pod", look)
    assert _seen_by(scaling, namespace, "gated") == []
    assert not read(scaling, "nodeclaims")["items"]
    status = read(scaling, f"--namespace={namespace}", "pod", "gated")["status"]
    scheduled = next(each for each in status["conditions"] if each["type"] == "PodScheduled")
    assert scheduled["reason"] == "SchedulingGated"


def test_an_autoscaler_adds_a_node_of_the_pool_for_each_placeholder(scaling: Cluster, namespace: str) -> None:
    """One more would be a machine for nothing, one fewer leaves pods without a slice."""
    documents = yaml.safe_load_all(COMPONENT.read_text(encoding="utf-8"))
    priority = next(each for each in documents if each["kind"] == "PriorityClass")
    apply(scaling, namespace, priority)
    scaling.kubectl("patch", "nodepool", POOL, "--type=merge", '--patch={"spec":{"limits":{"cpu":"1000"}}}')
    try:
        config = ClusterConfig(namespace=namespace)
        apply(scaling, namespace, *(dict(placeholder_pod(DEMAND, number, config, ())[1]) for number in range(2)))

        def look() -> bool | Unmet:
            nodes = [each for each in read(scaling, "nodes")["items"] if each["metadata"]["labels"].get(LABEL) == TYPE]
            claims = read(scaling, "nodeclaims")["items"]
            if len(nodes) == len(claims) == 2:
                return True
            return Unmet(f"{len(claims)} claims, {len(nodes)} nodes: {scaling.control_plane.box.log(PROCESS)[-2000:]}")

        until("Karpenter adds two nodes", look)
        assert len(read(scaling, "nodeclaims")["items"]) == 2
    finally:
        scaling.kubectl(f"--namespace={namespace}", "delete", "pods", "--all", "--force", "--grace-period=0")
        scaling.kubectl("patch", "nodepool", POOL, "--type=merge", '--patch={"spec":{"limits":{"cpu":"0"}}}')
        scaling.kubectl("delete", "nodeclaims", "--all", "--timeout=60s", timeout_s=70)
        scaling.kubectl("delete", "priorityclass", priority["metadata"]["name"], "--ignore-not-found")


def _pool() -> list[dict[str, object]]:
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL}
    linux = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
    template = {"spec": {"requirements": [linux], "nodeClassRef": reference}}
    return [
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": POOL}},
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": POOL},
            "spec": {"template": template, "limits": {"cpu": "0"}},
        },
    ]


def _seen_by(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """What Karpenter says of a pod, in its Events."""
    return [
        json.dumps([each.get("reason"), each.get("message")])
        for each in listed(cluster, namespace, "events")
        if each["involvedObject"]["name"] == name
        and PROCESS in (each.get("reportingComponent"), each.get("source", {}).get("component"))
    ]
