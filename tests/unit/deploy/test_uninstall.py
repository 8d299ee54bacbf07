"""Sluice can be taken away: no pod stays behind a gate that will never open."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chart
import pytest
from deploy_check import KUBERNETES
from fake_kube.server import FakeKube

from sluice.contracts.kube.names import GATE, LABEL_MANAGED, MANAGED

PROGRAM = KUBERNETES / "uninstall.sh"
KUBECTL = shutil.which("kubectl")
Json = dict[str, Any]

pytestmark = [pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl on PATH"), pytest.mark.slow]


@dataclass
class Cluster:
    environment: dict[str, str]
    kube: FakeKube

    def kubectl(self, *words: str, given: Json | None = None) -> Json:
        """What kubectl says, as JSON; empty when it says nothing."""
        text = "" if given is None else json.dumps(given)
        options = {"env": self.environment, "input": text, "capture_output": True, "text": True}
        done = subprocess.run(["kubectl", *words], **options, timeout=30, check=True)
        return json.loads(done.stdout) if done.stdout.startswith("{") else {}

    def create(self, name: str, *gates: str, **metadata: Any) -> None:
        """A pod that waits behind these gates, or is ready to be scheduled."""
        containers = [{"name": "main", "image": "train:1"}]
        spec = {"containers": containers, "schedulingGates": [{"name": gate} for gate in gates]}
        self.make("Pod", name, namespace="default", spec=spec, **metadata)

    def status(self, kind: str, name: str, namespace: str = "default", **status: Any) -> None:
        words = ("--namespace", namespace, "--subresource=status", "--type=merge", "--patch")
        self.kubectl("patch", kind, name, *words, json.dumps({"status": status}))

    def make(self, kind: str, name: str, version: str = "v1", *, spec: Json | None = None, **metadata: Any) -> None:
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec or {}}
        self.kubectl("create", "--validate=false", "-f", "-", given=made)

    def gates(self) -> dict[str, list[str]]:
        pods = self.kubectl("get", "pods", "--all-namespaces", "-o", "json")["items"]
        return {
            pod["metadata"]["name"]: [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def knows_gpus(self) -> None:
        self.kubectl("apply", "--validate=false", "-f", str(KUBERNETES / "base" / "crd-gpus.yaml"))

    def gpu(self, name: str, **slices: str) -> None:
        """With slices in these states, by their places."""
        self.make("Gpu", name, "sluice.dev/v1alpha1")
        if slices:
            self.status("gpu", name, slices=[{"place": place, "state": state} for place, state in slices.items()])

    def uninstall(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 50}
        environment = {**self.environment, **settings}
        return subprocess.run(["sh", PROGRAM, *words], env=environment, check=False, **options)

    def uninstalled(self, *words: str, **settings: str) -> str:
        """What was said as all of it succeeded."""
        done = self.uninstall(*words, **settings)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def stopped(self, *words: str, **settings: str) -> str:
        """What was said as some of it could not be done."""
        done = self.uninstall(*words, **settings)
        assert done.returncode != 0
        return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    config = tmp_path / "config"
    with FakeKube() as kube:
        kube.kubeconfig(config)
        home = {"HOME": str(tmp_path), "KUBECONFIG": str(config), "PATH": os.environ["PATH"], "WAIT_S": "2"}
        home["PROGRAM"] = str(Path(sys.executable).parent / "sluice-pod-watcher")
        yield Cluster(home, kube)


OWNED = {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}]}
"""Of a kind that the fake API server does not collect."""
WITH_ITS_HUB = {"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "hub", "uid": "u"}]}
"""It goes when its owner goes, and is not recreated."""
OURS = {"labels": {LABEL_MANAGED: MANAGED}}


def test_no_pod_stays_behind_our_gate(cluster: Cluster) -> None:
    """Bare ones lose it wherever it stands and are named, owned ones make way, others' gates stay."""
    cluster.create("bare", GATE, **OURS)
    cluster.create("queued-too", "kueue.x-k8s.io/admission", GATE, **OURS)
    cluster.create("by-hand", GATE)
    cluster.create("owned", GATE, **OURS, **OWNED)
    cluster.create("notebook", GATE, **OURS, **WITH_ITS_HUB)
    cluster.create("anothers", "kueue.x-k8s.io/admission")
    cluster.create("none")

    said = cluster.uninstalled("gates", SLUICE_OF_SOMETHING_ELSE="1")

    assert cluster.gates() == {
        "bare": [],
        "queued-too": ["kueue.x-k8s.io/admission"],
        "by-hand": [],
        "notebook": [],
        "anothers": ["kueue.x-k8s.io/admission"],
        "none": [],
    }
    for name in ("bare", "queued-too", "by-hand", "notebook"):
        assert re.search(f"delete and create it again.*default {name}", said)
    cluster.uninstalled("gates")


def test_a_controller_recreates_a_pod_without_a_gate(cluster: Cluster) -> None:
    """The webhook would gate it again, or its creation fail: every Deployment would wait as before."""
    cluster.make("MutatingWebhookConfiguration", "sluice", "admissionregistration.k8s.io/v1")
    cluster.uninstalled("gates")
    assert cluster.kubectl("get", "mutatingwebhookconfigurations", "-o", "json")["items"] == []


def test_one_pod_that_may_not_be_deleted_keeps_no_other_behind_its_gate(cluster: Cluster) -> None:
    """A rule of another team protects it, each time: those behind it in the list would wait for ever."""
    cluster.create("a-protected", GATE, **OURS, **OWNED)
    cluster.create("b-waits", GATE, **OURS)
    cluster.kube.faults.fail(100, verb="delete", path="pods", code=403)
    said = cluster.stopped("gates")
    assert cluster.gates() == {"a-protected": [GATE], "b-waits": []}
    assert re.search(r"these pods are still gated.*\n?.*default a-protected", said)


def test_one_pod_that_vanishes_keeps_no_other_behind_its_gate(cluster: Cluster) -> None:
    """The program would end in the middle, after the webhook is gone."""
    cluster.create("a-vanishes", GATE, **OURS)
    cluster.create("b-stays", GATE, **OURS)
    cluster.kube.faults.fail(1, verb="patch", path="pods", code=404)
    cluster.uninstalled("gates")
    assert cluster.gates()["b-stays"] == []


def test_pods_that_have_ended_hold_nothing_up(cluster: Cluster) -> None:
    """A cluster with finished Jobs would wait in vain, and be asked to delete what holds nothing."""
    cluster.create("done", **OURS)
    cluster.status("pod", "done", phase="Succeeded")
    cluster.uninstalled("all")


def test_agents_stay_as_long_as_pods_with_slices_do(cluster: Cluster) -> None:
    """Without the driver of their volume they could never end."""
    cluster.create("runs", **OURS)
    cluster.make("CSIDriver", "slice.sluice.dev", "storage.k8s.io/v1", spec={"attachRequired": False})
    said = cluster.stopped("all")
    assert "these pods still have slices" in said
    assert "default runs" in said
    assert cluster.kubectl("get", "csidriver", "slice.sluice.dev", "-o", "json")["metadata"]["name"]


def test_slices_are_taken_off_the_gpus_before_the_agents_go(cluster: Cluster) -> None:
    """GPUs would stay cut for pods that have ended; what was there before Sluice is none of its business."""
    cluster.knows_gpus()
    cluster.gpu("node1-0", **{"1g.5gb@0": "Foreign", "2g.10gb@2": "Ready"})
    cluster.create("runs")
    said = cluster.stopped("all")
    assert "these GPUs still have slices of ours" in said
    assert "node1-0 2g.10gb@2" in said
    assert "1g.5gb@0" not in said
    cluster.uninstalled("all", LEAVE_SLICES="true")
    assert not cluster.kubectl("get", "crd", "-o", "json")["items"]


def test_only_what_was_there_before_holds_nothing_up(cluster: Cluster) -> None:
    cluster.knows_gpus()
    cluster.gpu("node1-0", **{"1g.5gb@0": "Foreign", "1g.5gb@1": "Quarantined"})
    cluster.gpu("node1-1")
    cluster.uninstalled("all")


@pytest.mark.parametrize("unseen", ["pods", "gpus", "mutatingwebhookconfigurations"])
def test_what_cannot_be_seen_is_not_taken_for_gone(cluster: Cluster, unseen: str) -> None:
    """Agents would be removed from under pods and slices, because an API server did not answer for a moment."""
    cluster.knows_gpus()
    cluster.kube.faults.fail(100, path=unseen, code=500)
    assert "cannot see or change what is left" in cluster.stopped("all")
    assert cluster.kubectl("get", "crd", "gpus.sluice.dev", "-o", "json")["metadata"]["name"] == "gpus.sluice.dev"


@pytest.mark.parametrize("code", [410, 429, 503])
def test_an_api_server_that_is_busy_or_restarted_for_a_moment_is_asked_again(cluster: Cluster, code: int) -> None:
    """It waits for minutes, and a Job of Helm's runs once: the release would stay half removed."""
    cluster.create("waits", GATE)
    cluster.kube.faults.fail(2, verb="list", path="pods", code=code, retry_after_s=1)
    cluster.uninstalled("all", WAIT_S="8")
    assert cluster.gates() == {"waits": []}


@dataclass
class Agents:
    """The DaemonSet as it is shipped, and one node's pod of it."""

    cluster: Cluster

    def __post_init__(self) -> None:
        text = (KUBERNETES / "base" / "node-agent.yaml").read_text(encoding="utf-8")
        (daemonset,) = chart.documents(text)
        self.cluster.make("Namespace", "sluice-nodes")
        self.cluster.kubectl("create", "--validate=false", "-f", "-", given=daemonset)
        self.cluster.status("daemonset", "sluice-node-agent", "sluice-nodes", desiredNumberScheduled=1)

    def pod(self, node: str, **labels: str) -> None:
        ours = {"app.kubernetes.io/part-of": "sluice", "app.kubernetes.io/component": "node-agent"} | labels
        spec = {"nodeName": node, "containers": [{"name": "csi", "image": "sluice-node-agent:1"}]}
        self.cluster.make("Pod", f"agent-{node}", namespace="sluice-nodes", labels=ours, spec=spec)


def test_nodes_are_cleaned_before_the_last_that_could_clean_them_goes(cluster: Cluster) -> None:
    """Mounts, sockets and folders stayed on every node."""
    agents = Agents(cluster)
    cluster.kube.nodes.add("n1")
    agents.pod("n1", **{"sluice.dev/cleans-node": "true"})
    stopped = cluster.uninstall("all", KUBECTL="false")
    assert "not cleaned" not in stopped.stdout
    found = cluster.kubectl("get", "daemonset", "--namespace", "sluice-nodes", "sluice-node-agent", "-o", "json")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert "/opt/sluice/bin/run clean-node --of-process 1" in container["command"][-1]
    variables = {each["name"] for each in container["env"]}
    assert {"SLUICE_NODE_AGENT_KUBELET_ROOT", "SLUICE_NODE_AGENT_PODS_DIR"} <= variables
    assert "livenessProbe" not in container, "no driver answers it any more"
    assert found["spec"]["template"]["spec"]["hostPID"] is True
    cluster.uninstalled("all")


def test_a_node_that_was_not_cleaned_is_named_and_holds_nothing_up(cluster: Cluster) -> None:
    """A node that is down for good would keep Sluice in the cluster."""
    agents = Agents(cluster)
    cluster.kube.nodes.add("n-down")
    agents.pod("n-down")
    said = cluster.uninstalled("all")
    assert "these nodes were not cleaned: there, unmount what is below /run/sluice" in said
    assert "n-down (its agent has not ended)" in said


@pytest.mark.parametrize(
    ("state", "said", "why"),
    [
        ({}, "", "not yet"),
        ({"reason": "ImagePullBackOff", "message": "Back-off pulling image x:1"}, "", "Back-off pulling image x:1"),
        ({"reason": "CrashLoopBackOff"}, "earlier\nnode-agent: kept: /run is busy\n", "kept: /run is busy"),
    ],
    ids=["slow", "without-image", "in-use"],
)
def test_what_keeps_a_node_from_being_cleaned_is_named(cluster: Cluster, state: Json, said: str, why: str) -> None:
    """Afterwards no pod is left that could be asked."""
    agents = Agents(cluster)
    agents.pod("n1", **{"sluice.dev/cleans-node": "true"})
    ended = {"lastState": {"terminated": {"exitCode": 1, "message": said}}} if said else {}
    container = {"name": "csi", "state": {"waiting": state}, **ended}
    cluster.status("pod", "agent-n1", "sluice-nodes", containerStatuses=[container])
    stopped = cluster.uninstall("all", KUBECTL="false")
    assert re.search(rf"n1 \([^)]*{why}\)", stopped.stdout)


def test_nothing_happens_without_being_told_what(cluster: Cluster) -> None:
    done = cluster.uninstall()
    assert done.returncode == 2
    assert done.stdout.startswith("usage:")
