"""The chart on a real cluster: installed, tried, upgraded and uninstalled by Helm, on simulated GPUs."""

import secrets
from collections.abc import Iterator

import pytest
from cluster import product, remains
from cluster.harness.cluster import Cluster
from cluster.helm import CHART, NAMESPACE, Helm, emptied, installed
from cluster.objects import PROFILE, apply, devices, free_volumes, is_gated, listed, pod, wait_for, wait_for_no_slice
from cluster.waiting import until

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}
LATE = "test.example/not-yet"
"""A taint of a node that takes no agent when Sluice is installed."""
OPTIONS = ("--set=simulated.enabled=true", "--set=deviceClasses.sluice=true", f"--namespace={NAMESPACE}")


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Iterator[Helm]:
    """The cluster with Sluice by Helm, which is all that is typed."""
    late = cluster.workers[-1].name
    with emptied(cluster) as helm:
        cluster.kubectl("taint", "node", late, f"{LATE}=true:NoSchedule")
        try:
            with installed(helm, *OPTIONS):
                yield helm
        finally:
            cluster.kubectl("taint", "node", late, f"{LATE}-", check=False)


@pytest.fixture(scope="module")
def space(helm: Helm, cluster: Cluster) -> Iterator[str]:
    """A namespace with a pod that runs and one that waits."""
    del helm
    name = f"helm-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    apply(cluster, name, pod("runs"), pod("waits", annotations=NOWHERE))
    wait_for(cluster, name, "condition=Ready", "pod/runs")
    yield name
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", timeout_s=130)


def test_a_fresh_installation_gives_a_pod_its_slice(helm: Helm) -> None:
    """A user has no other sign that it works."""
    assert "Succeeded" in helm.done("test", "sluice", f"--namespace={NAMESPACE}", "--timeout=120s")


def test_a_node_that_joins_needs_nothing(helm: Helm, cluster: Cluster) -> None:
    """Each new node of an autoscaler would need an operator, and could not serve before one came."""
    del helm
    late = cluster.workers[-1].name
    assert {each["spec"]["nodeName"] for each in listed(cluster, "sluice-nodes")} == {cluster.workers[0].name}
    cluster.kubectl("taint", "node", late, f"{LATE}-")
    until(f"the GPUs of {late} are known", lambda: late in cluster.kubectl("get", "gpus"))
    joins = pod("joins")
    joins["spec"]["nodeSelector"] = {"kubernetes.io/hostname": late}
    apply(cluster, "default", joins)
    try:
        wait_for(cluster, "default", "condition=Ready", "pod/joins")
    finally:
        cluster.kubectl("delete", "pod", "joins", "--timeout=90s", timeout_s=100)


def test_an_upgrade_touches_no_running_pod(helm: Helm, cluster: Cluster, space: str) -> None:
    """Other values reach the services and the CustomResourceDefinition; webhook and pods stay as they are."""
    before = _container(cluster, space)
    bundle = _bundle(cluster)
    cluster.kubectl("label", "crd", "gpus.sluice.dev", "team=old", "--overwrite")
    helm.done("upgrade", "sluice", str(CHART), *OPTIONS, "--set=labels.team=gpu", "--wait", "--timeout=180s")
    product.wait(cluster)
    for kind in ("crd/gpus.sluice.dev", "csidriver/slice.sluice.dev"):
        assert cluster.kubectl("get", kind, "--output=jsonpath={.metadata.labels.team}") == "gpu"
    assert _container(cluster, space) == before
    assert _bundle(cluster) == bundle != ""
    apply(cluster, space, pod("later"))
    wait_for(cluster, space, "condition=Ready", "pod/later")
    assert len(set(devices(cluster, space).values())) == len(devices(cluster, space))


def test_nothing_is_removed_under_pods_with_slices(helm: Helm, cluster: Cluster, space: str) -> None:
    """They could not end without the agents: Helm stops, says which, and no pod is gated any more."""
    helm.done("upgrade", "sluice", str(CHART), *OPTIONS, "--set=uninstall.waitSeconds=5", "--wait", "--timeout=180s")
    product.wait(cluster)
    stopped = helm.run("uninstall", "sluice", f"--namespace={NAMESPACE}", "--timeout=120s")
    assert stopped.returncode != 0
    assert "these pods still have slices" in stopped.stdout
    assert f"{space} runs" in stopped.stdout
    assert not [each for each in listed(cluster, space) if is_gated(each)]
    assert len(listed(cluster, "sluice-nodes")) == len(cluster.workers)


def test_the_cluster_is_as_before_the_installation(helm: Helm, cluster: Cluster, space: str) -> None:
    """Object by object, but for the namespace that Helm does not own, with what was made there before."""
    cluster.kubectl(f"--namespace={space}", "delete", "pod", "--all", "--timeout=90s", timeout_s=100)
    wait_for_no_slice(cluster)
    claims = listed(cluster, NAMESPACE, "persistentvolumeclaims")
    helm.done("uninstall", "sluice", f"--namespace={NAMESPACE}", "--timeout=300s")
    cluster.kubectl("delete", "namespace", space, "--timeout=120s", timeout_s=130)
    until("no pod of Sluice is left", lambda: not listed(cluster, NAMESPACE))
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s", timeout_s=130)
    remains.wait_for_none(cluster)
    free_volumes(cluster, [each["spec"]["volumeName"] for each in claims])
    for node in cluster.workers:
        assert remains.on_node(node) == ["/var/lib/sluice"]


def _container(cluster: Cluster, space: str) -> object:
    return next(each for each in listed(cluster, space) if each["metadata"]["name"] == "runs")["status"][
        "containerStatuses"
    ]


def _bundle(cluster: Cluster) -> str:
    return cluster.kubectl(
        "get", "mutatingwebhookconfiguration", "sluice", "--output=jsonpath={.webhooks[0].clientConfig.caBundle}"
    )
