"""Without Sluice a cluster is as before it: no pod stays behind a gate, and no object and no mount is left."""

import re
import secrets
from collections.abc import Iterator

import pytest
from cluster import product, remains
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.objects import PROFILE, Json, apply, free_volumes, has_status, is_gated, listed, pod, template, wait_for
from cluster.waiting import until

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}
"""A request that no node here can serve: such a pod waits."""
STAYS = ["/var/lib/sluice"]
"""What docs/install.md names, on a node."""


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[str]:
    """A namespace with pods that run, wait and have finished; bare ones, and of a Deployment."""
    name = f"uninstalled-{secrets.token_hex(3)}"
    installed.kubectl("create", "namespace", name)
    apply(
        installed,
        name,
        pod("running"),
        pod("waiting", annotations=NOWHERE),
        pod("finished", script="true"),
        _deployment("runs", PROFILE),
        _deployment("waits", NOWHERE),
    )
    wait_for(installed, name, "condition=Ready", "pod/running")
    wait_for(installed, name, "condition=Available", "deployment/runs")
    wait_for(installed, name, "jsonpath={.status.phase}=Succeeded", "pod/finished")
    until("both wait", lambda: len([each for each in listed(installed, name) if is_gated(each)]) == 2)
    yield name
    installed.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", timeout_s=130)


def test_gates_are_opened_and_no_new_pod_is_gated(installed: Cluster, space: str) -> None:
    """Running pods stay as they are, those with a controller run without Sluice, and bare ones are named."""
    running = _named(installed, space, "running")["status"]["containerStatuses"]
    assert re.search(f"delete and create it again.*{space} waiting", product.uninstall(installed, "gates"))
    assert not [each for each in listed(installed, space) if is_gated(each)]
    wait_for(installed, space, "condition=Available", "deployment/waits")
    apply(installed, space, pod("later"))
    wait_for(installed, space, "condition=Ready", "pod/later")
    assert "labels" not in _named(installed, space, "later")["metadata"]
    assert _named(installed, space, "running")["status"]["containerStatuses"] == running
    assert "delete and create" not in product.uninstall(installed, "gates")


def test_nothing_is_removed_under_pods_with_slices(installed: Cluster, space: str) -> None:
    """They could not end without the agents: they are named, and everything that they need runs on."""
    with pytest.raises(BoxError, match="these pods still have slices") as refused:
        product.uninstall(installed, wait_s=3)
    names = {line.split()[1] for line in str(refused.value).splitlines() if line.startswith(space)}
    assert {"running", "waiting"} <= names
    assert not {"finished", "later"} & names
    assert len(names) == 3
    agents = listed(installed, "sluice-nodes")
    assert len(agents) == len(installed.workers)
    assert all(has_status(each, "Ready") for each in agents)


def test_the_cluster_is_as_before_the_installation(installed: Cluster, space: str) -> None:
    """Object by object, of every kind that the API server knows; on the nodes only what the page names."""
    installed.kubectl(f"--namespace={space}", "delete", "deployment", "runs", "--timeout=60s", timeout_s=70)
    installed.kubectl(f"--namespace={space}", "delete", "pod", "running", "waiting", "--timeout=90s", timeout_s=100)
    claims = listed(installed, "sluice-system", "persistentvolumeclaims")
    assert "not cleaned" not in product.uninstall(installed)
    # A pod that had finished needs no driver to go.
    installed.kubectl("delete", "namespace", space, "--timeout=120s", timeout_s=130)
    # Garbage collection and aggregated roles follow within seconds.
    remains.wait_for_none(installed)
    assert {node.name: remains.on_node(node) for node in installed.workers} == {
        node.name: STAYS for node in installed.workers
    }
    free_volumes(installed, [each["spec"]["volumeName"] for each in claims])


def _deployment(name: str, annotations: dict[str, str]) -> Json:
    labels = {"app": name}
    spec = {"selector": {"matchLabels": labels}, "template": template(labels=labels, annotations=annotations)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _named(cluster: Cluster, namespace: str, name: str) -> Json:
    return next(each for each in listed(cluster, namespace) if each["metadata"]["name"] == name)
