"""An upgrade from the last release touches no running pod, and pods that come meanwhile get their slices."""

import json
import secrets
from collections.abc import Iterator

import pytest
from cluster import last_release, product
from cluster.harness.cluster import Cluster
from cluster.objects import (
    PROFILE,
    Json,
    apply,
    devices,
    free_volumes,
    has_status,
    listed,
    pod,
    template,
    wait_for,
    wait_for_no_slice,
)
from cluster.waiting import until

LATE = "test.example/not-yet"
"""A taint of a node that has no agent before the upgrade."""
NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[str]:
    """A namespace on the last release, in which `old` runs and `waits` waits. At the end all is of today."""
    name = f"upgrade-{secrets.token_hex(3)}"
    claims = listed(installed, "sluice-system", "persistentvolumeclaims")
    product.uninstall(installed)
    free_volumes(installed, [each["spec"]["volumeName"] for each in claims])
    installed.kubectl("taint", "node", installed.workers[-1].name, f"{LATE}=true:NoSchedule")
    installed.kubectl("apply", "--server-side", "--filename=-", stdin=last_release.manifests())
    known = [node.name for node in installed.workers[:-1]]
    installed.kubectl("apply", "--server-side", "--filename=-", stdin=last_release.identities(known))
    product.wait(installed, without="sluice-callout")
    installed.kubectl("create", "namespace", name)
    try:
        apply(installed, name, pod("old"), pod("waits", annotations=NOWHERE))
        wait_for(installed, name, "condition=Ready", "pod/old")
        yield name
    finally:
        installed.kubectl("taint", "node", installed.workers[-1].name, f"{LATE}-", check=False)
        installed.kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130)
        _forget_the_job(installed)
        product.install(installed, components=["resource-claims"])
        wait_for_no_slice(installed)


def test_an_upgrade_touches_no_running_pod(installed: Cluster, space: str) -> None:
    """The page's one step, while a job makes pods: they all run, and `old` is the same container as before."""
    before = _state(installed, space)
    agents = _agents(installed)
    job = {"template": template(annotations=PROFILE, script="echo $NVIDIA_VISIBLE_DEVICES", restartPolicy="Never")}
    spec = {"completions": 6, "parallelism": 2, "backoffLimit": 0, **job}
    apply(installed, space, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "during"}, "spec": spec})
    _forget_the_job(installed)
    product.install(installed)
    assert not agents & _agents(installed), "the upgrade replaced no agent: the manifests are the same"
    assert _state(installed, space) == before
    wait_for(installed, space, "condition=Complete", "job/during", within_s=180)
    printed = installed.kubectl(f"--namespace={space}", "logs", "--selector=job-name=during", "--tail=-1").split()
    assert len(printed) == 6
    assert all(device.startswith("MIG-") for device in printed)


def test_a_node_that_the_release_did_not_know_needs_nothing(installed: Cluster, space: str) -> None:
    """It never had a password."""
    late = installed.workers[-1].name
    installed.kubectl("taint", "node", late, f"{LATE}-")
    until(f"the GPUs of {late} are known", lambda: late in installed.kubectl("get", "gpus"))
    joins = pod("joins")
    joins["spec"]["nodeSelector"] = {"kubernetes.io/hostname": late}
    apply(installed, space, joins)
    wait_for(installed, space, "condition=Ready", "pod/joins")
    product.wait(installed)


def test_a_restart_of_everything_touches_no_running_pod(installed: Cluster, space: str) -> None:
    """As where every image is new: all of Sluice's pods at once, and a pod that is created meanwhile runs."""
    before = _state(installed, space)
    for namespace, workload in product.WORKLOADS:
        installed.kubectl(f"--namespace={namespace}", "rollout", "restart", workload)
    # While the webhook is replaced, a pod is refused at most for a moment: an owner tries again.
    until("a pod can be created", lambda: "created" in _created(installed, space, pod("new")))
    product.wait(installed)
    wait_for(installed, space, "condition=Ready", "pod/new")
    assert _state(installed, space) == before
    assert len(set(devices(installed, space).values())) == len(devices(installed, space))


def test_pods_of_before_an_upgrade_end_well(installed: Cluster, space: str) -> None:
    """Their slices are given back, and the one that waited still says why."""
    names = ("pod/old", "pod/new", "pod/joins")
    installed.kubectl(f"--namespace={space}", "delete", *names, "--timeout=120s", timeout_s=130)
    installed.kubectl(f"--namespace={space}", "delete", "job", "during", "--ignore-not-found")
    wait_for_no_slice(installed)
    waits = next(each for each in listed(installed, space) if each["metadata"]["name"] == "waits")
    assert has_status(waits, "sluice.dev/SliceReady", "False")


def _forget_the_job(cluster: Cluster) -> None:
    """Step 2 of the page: within ten minutes of the last apply."""
    cluster.kubectl("--namespace=sluice-system", "delete", "job", "sluice-streams", "--ignore-not-found")


def _created(cluster: Cluster, namespace: str, made: Json) -> str:
    return cluster.kubectl(f"--namespace={namespace}", "create", "--filename=-", stdin=json.dumps(made), check=False)


def _state(cluster: Cluster, namespace: str) -> Json:
    """What must stay of the pod `old`: its identity, its containers and what it was granted."""
    old = next(each for each in listed(cluster, namespace) if each["metadata"]["name"] == "old")
    containers = [(each["containerID"], each["restartCount"]) for each in old["status"]["containerStatuses"]]
    annotations = old["metadata"]["annotations"]
    ready = has_status(old, "Ready")
    return {"uid": old["metadata"]["uid"], "containers": containers, "annotations": annotations, "ready": ready}


def _agents(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in listed(cluster, "sluice-nodes")}
