"""A namespace gets GPUs from Sluice alone: its administrator finds each way around it closed, with a sentence."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.gpu_pods import IMAGE
from cluster.harness.cluster import Cluster
from cluster.objects import (
    PROFILE,
    Json,
    apply,
    has_status,
    is_gated,
    listed,
    pod,
    refusal,
    template,
    wait_for,
    wait_for_no_slice,
)
from cluster.waiting import until

ALICE = ("--as=alice", "--as-group=system:authenticated")
"""Of the ClusterRole `admin` in her namespace, with the right to debug there."""
GRANT = "main.granted.sluice.dev/visible-devices"
NOWHERE = {"sluice.dev/profile": "1g.5gb", "sluice.dev/gpu-model": "H100"}
"""A request that no node here can serve."""


@pytest.fixture(scope="module")
def hers(installed: Cluster) -> Iterator[str]:
    """Her namespace, with a pod `running` and a pod `waiting`."""
    name = f"doors-{secrets.token_hex(3)}"
    installed.kubectl("create", "namespace", name)
    try:
        for create in (
            ("rolebinding", "hers", "--clusterrole=admin", "--user=alice"),
            ("role", "debugger", "--verb=patch", "--resource=pods/ephemeralcontainers"),
            ("rolebinding", "debugger", "--role=debugger", "--user=alice"),
        ):
            installed.kubectl(f"--namespace={name}", "create", *create)
        apply(installed, name, pod("running"), pod("waiting", annotations=NOWHERE))
        wait_for(installed, name, "condition=Ready", "pod/running")
        yield name
    finally:
        installed.kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130)
        wait_for_no_slice(installed)


def test_no_gate_is_opened_by_hand(installed: Cluster, hers: str) -> None:
    """The pod waits on, and the refusal says where to look."""
    patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
    said = refusal(installed, hers, *ALICE, "patch", "pod", "waiting", "--type=json", f"--patch={json.dumps(patch)}")
    assert "only Sluice opens the gate sluice.dev/slice: the pod waits for its slice" in said
    assert {each["metadata"]["name"] for each in listed(installed, hers) if is_gated(each)} == {"waiting"}


@pytest.mark.parametrize("name", ["running", "waiting"])
def test_grants_and_requests_of_a_pod_stay(installed: Cluster, hers: str, name: str) -> None:
    """Neither a device written by hand, nor another request, nor one taken away."""
    before = _named(installed, hers, name)["metadata"]["annotations"]
    for change in (f"{GRANT}=all", "sluice.dev/profile=7g.40gb", "sluice.dev/profile-"):
        said = refusal(installed, hers, *ALICE, "annotate", "--overwrite", "pod", name, change)
        assert "sluice.dev annotations of an existing pod may not change: " in said
        assert change.rstrip("-").partition("=")[0] in said
    assert _named(installed, hers, name)["metadata"]["annotations"] == before


def test_the_label_stays_and_no_pod_is_hidden(installed: Cluster, hers: str) -> None:
    """A running pod cannot be taken out of sight; other labels are its owner's."""
    said = refusal(installed, hers, *ALICE, "label", "pod", "running", "sluice.dev/managed-")
    assert "the label sluice.dev/managed is set by Sluice" in said
    said = refusal(installed, hers, *ALICE, "label", "pod", "running", "sluice.dev/ignore=")
    assert "a pod of Sluice cannot get the label sluice.dev/ignore" in said
    installed.kubectl(f"--namespace={hers}", *ALICE, "label", "pod", "running", "team=research")


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"annotations": {GRANT: "all"}}, "main.granted.sluice.dev/visible-devices"),
        ({"labels": {"sluice.dev/managed": "true"}}, "sluice.dev/managed"),
        ({"annotations": {"sluice.dev/request": "{}"}}, "sluice.dev/request"),
    ],
    ids=["grant", "label", "request"],
)
def test_a_new_pod_brings_nothing_that_sluice_writes(
    installed: Cluster, hers: str, metadata: Json, sentence: str
) -> None:
    """What is refused is named, so that an exported manifest can be mended."""
    forged = pod("forged", annotations={})
    forged["metadata"] |= metadata
    assert sentence in refusal(installed, hers, *ALICE, "create", "--filename=-", stdin=forged)


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({}, "a volume of type hostPath may not reach into the directories of Sluice: "),
        (PROFILE, "of the node, which gives access to the slices of other pods"),
    ],
    ids=["plain", "slice"],
)
@pytest.mark.parametrize("path", ["/run/sluice", "/run//sluice/./pods", "/var/run/sluice", "/var/lib/sluice/journal"])
def test_no_pod_mounts_the_directories_of_sluice(
    installed: Cluster, hers: str, path: str, annotations: dict[str, str], sentence: str
) -> None:
    """However the path is spelled, and whether the pod has a slice or not."""
    host = pod("host", annotations=annotations, volumes=[{"name": "host", "hostPath": {"path": path}}])
    said = refusal(installed, hers, *ALICE, "create", "--filename=-", stdin=host)
    assert sentence in said
    assert "hostPath" in said


def test_a_plain_pod_chooses_no_device_and_no_ticket(installed: Cluster, hers: str) -> None:
    """Neither by its environment nor by a volume of our driver."""
    chosen = pod("chosen", annotations={})
    chosen["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    said = refusal(installed, hers, *ALICE, "create", "--filename=-", stdin=chosen)
    assert "GPU environment is set by Sluice, not by hand: main" in said
    ticket = {"name": "ticket", "csi": {"driver": "slice.sluice.dev", "readOnly": True}}
    taken = pod("taken", annotations={}, volumes=[ticket])
    taken["spec"]["containers"][0]["volumeMounts"] = [{"name": "ticket", "mountPath": "/ticket"}]
    said = refusal(installed, hers, *ALICE, "create", "--filename=-", stdin=taken)
    assert "volumes of slice.sluice.dev are added and mounted by Sluice, not by hand" in said


def test_a_deployment_that_is_refused_says_why(installed: Cluster, hers: str) -> None:
    """Its pods are refused, not itself: the sentence is in the Event of its ReplicaSet."""
    labels = {"app": "host"}
    spec = template(labels=labels, volumes=[{"name": "host", "hostPath": {"path": "/run/sluice"}}])
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "host"},
        "spec": {"selector": {"matchLabels": labels}, "template": spec},
    }
    apply(installed, hers, deployment)
    try:
        reported = until(
            "the Deployment reports the refusal",
            lambda: [
                condition["message"]
                for condition in listed(installed, hers, "deployments")[0].get("status", {}).get("conditions", [])
                if condition["type"] == "ReplicaFailure"
            ],
        )
        assert "may not reach into the directories of Sluice: /run/sluice/" in reported[0]
    finally:
        installed.kubectl(f"--namespace={hers}", "delete", "deployment", "host", "--timeout=60s", timeout_s=70)


def test_a_binding_brings_no_device(installed: Cluster, hers: str) -> None:
    """Even a scheduler with the right to bind writes no grant: a Binding's annotations end up on its pod."""
    apply(installed, hers, pod("unbound", annotations={}, schedulerName="another"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "unbound", "annotations": {GRANT: "all"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": installed.workers[0].name},
    }
    path = f"/api/v1/namespaces/{hers}/pods/unbound/binding"
    said = refusal(installed, hers, "create", f"--raw={path}", "--filename=-", stdin=binding)
    assert "a Binding may not bring annotations of sluice.dev onto its pod" in said
    binding["metadata"] = {"name": "unbound", "labels": {"sluice.dev/managed": "true"}}
    said = refusal(installed, hers, "create", f"--raw={path}", "--filename=-", stdin=binding)
    assert "a Binding may not bring labels of sluice.dev onto its pod" in said
    said = refusal(installed, hers, *ALICE, "create", f"--raw={path}", "--filename=-", stdin=binding)
    assert 'cannot create resource "pods/binding"' in said


def test_a_container_for_debugging_joins_a_pod_with_a_slice(installed: Cluster, hers: str) -> None:
    """`kubectl debug` works as on any pod; the container sees no GPU."""
    script = "echo device=$NVIDIA_VISIBLE_DEVICES; ls /run/sluice 2>&1 | head -1"
    _debug(installed, hers, "plain", script=script)
    until("the container has ended", lambda: "terminated" in _ephemeral(installed, hers, "plain"))
    printed = installed.kubectl(f"--namespace={hers}", "logs", "running", "--container=plain")
    assert printed.splitlines()[0] == "device=void"
    assert has_status(_named(installed, hers, "running"), "Ready")


def test_a_container_for_debugging_gets_no_gpu(installed: Cluster, hers: str, tmp_path: Path) -> None:
    """Not by the variable, not by the pod's volume, and not by privileges."""
    debug = ("debug", "running", f"--image={IMAGE}", "--container=refused")
    for options in (("--env=NVIDIA_VISIBLE_DEVICES=all",), (f"--custom={_mounting(tmp_path)}",)):
        said = refusal(installed, hers, *ALICE, *debug, *options, "--", "true")
        assert "denied the request: " in said or "a container for debugging gets no GPU and no ticket" in said
    said = refusal(installed, hers, *ALICE, *debug, "--profile=sysadmin", "--", "true")
    assert "privileged" in said


def _mounting(folder: Path) -> Path:
    path = folder / "custom.json"
    path.write_text(json.dumps({"volumeMounts": [{"name": "sluice-slice", "mountPath": "/ticket"}]}))
    return path


def _debug(cluster: Cluster, namespace: str, name: str, *, script: str) -> None:
    options = (f"--image={IMAGE}", f"--container={name}", "--profile=general")
    cluster.kubectl(f"--namespace={namespace}", *ALICE, "debug", "running", *options, "--", "sh", "-c", script)


def _ephemeral(cluster: Cluster, namespace: str, name: str) -> Json:
    statuses = _named(cluster, namespace, "running")["status"].get("ephemeralContainerStatuses", [])
    states: list[Json] = [each["state"] for each in statuses if each["name"] == name]
    return states[0] if states else {}


def _named(cluster: Cluster, namespace: str, name: str) -> Json:
    return next(each for each in listed(cluster, namespace) if each["metadata"]["name"] == name)
