"""Karpenter, with its provider for tests: what an autoscaler makes of pods that wait for a slice."""

import json
import os
from collections.abc import Iterator

import pytest
from cluster.gpu_pods import until_waiting
from cluster.harness.binaries import build_extra
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, apply, listed, pod, read
from cluster.waiting import Unmet, until

PROCESS = "karpenter"
POOL = "none"
CRDS = ("pkg/apis/crds", "kwok/apis/crds")
TOO_MUCH = {"cpu": "200"}
"""No machine here has it."""


@pytest.fixture(scope="module")
def scaling(installed: Cluster) -> Iterator[Cluster]:
    """The cluster with Karpenter and a pool that may not grow: it looks for room for pods, and starts no machine."""
    built = build_extra("karpenter")
    crds = [f"--filename={built.folder / 'manifests' / each}" for each in CRDS]
    control_plane = installed.control_plane
    settings = {
        "KUBECONFIG": str(control_plane.folder / "admin.kubeconfig"),
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "PATH": os.environ["PATH"],
    }
    installed.kubectl("apply", "--server-side", *crds)
    try:
        installed.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s", timeout_s=70)
        control_plane.box.spawn(PROCESS, [built.executables["karpenter"]], settings)
        installed.save()
        try:
            apply(installed, "default", *_pool())
            yield installed
        finally:
            for kind in ("nodepools", "nodeclaims", "kwoknodeclasses"):
                installed.kubectl("delete", kind, "--all", "--timeout=60s", timeout_s=70)
            control_plane.box.end(PROCESS)
            installed.save()
    finally:
        installed.kubectl("delete", *crds, "--timeout=60s", timeout_s=70)


def test_an_autoscaler_looks_for_no_room_for_a_pod_that_waits_for_its_slice(
    scaling: Cluster, given_back: None, namespace: str
) -> None:
    """As docs/faq.md says: to the scheduler it is gated, not unschedulable. A plain pod too big for all it looks at."""
    del given_back
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
