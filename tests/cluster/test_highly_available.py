"""Three brokers, two of each service that decides, and enforced NetworkPolicies: one of each may go at any time."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import judging, product
from cluster.breaking import force_delete, pods_of
from cluster.harness import addons
from cluster.harness.cluster import Cluster
from cluster.helm import NAMESPACE, Helm, emptied, installed
from cluster.objects import apply, devices, pod, read, wait_for, wait_for_no_slice

SERVICES = ("allocator", "callout", "inventory", "nats", "podWatcher", "webhook")
OPTIONS = (
    "--set=simulated.enabled=true",
    "--set=replicas=ha",
    *(f"--set={service}.resources.requests.cpu=50m" for service in SERVICES),  # machines here may have two cores
    f"--namespace={NAMESPACE}",
)
TAINT = "node-role.kubernetes.io/control-plane:NoSchedule"
BROKERS = 3
DECIDING = ("allocator", "pod-watcher", "callout", "webhook")
SERVED_S = 60
"""For a pod while one of each is gone: an election of brokers and the lease of the deposed come first."""


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Iterator[Helm]:
    """The chart with `replicas: ha`, on machines that enforce its NetworkPolicies."""
    with (
        emptied(cluster) as helm,
        three_machines(cluster),
        network_policies(cluster),
        installed(helm, *OPTIONS),
    ):
        yield helm


@contextmanager
def three_machines(cluster: Cluster) -> Iterator[None]:
    """Each broker needs one of its own: the control plane's takes pods meanwhile, and has a volume."""
    machine = cluster.nodes[0]
    volume = addons.volume(machine.name, 0)
    machine.box.run("mkdir", "--parents", volume["spec"]["local"]["path"])
    product.bring_images(cluster, [machine])
    apply(cluster, "default", volume)
    cluster.kubectl("taint", "node", machine.name, f"{TAINT}-")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", machine.name, TAINT)
        cluster.kubectl("delete", "persistentvolume", volume["metadata"]["name"])


@contextmanager
def network_policies(cluster: Cluster) -> Iterator[None]:
    """Enforced meanwhile."""
    was_enforced = cluster.enforces_network_policies
    cluster.enforce_network_policies()
    try:
        yield
    finally:
        if not was_enforced:
            cluster.ignore_network_policies()


@pytest.fixture(scope="module")
def space(helm: Helm, cluster: Cluster) -> Iterator[str]:
    """A namespace with a pod that runs."""
    del helm
    name = f"available-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    apply(cluster, name, pod("runs"))
    wait_for(cluster, name, "condition=Ready", "pod/runs")
    yield name
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", timeout_s=130)
    wait_for_no_slice(cluster)


def test_a_fresh_installation_gives_a_pod_its_slice(helm: Helm, cluster: Cluster) -> None:
    """A policy that forgets one path between services, brokers or agents would stop all of them."""
    assert "Succeeded" in helm.done("test", "sluice", f"--namespace={NAMESPACE}", "--timeout=120s")
    assert len(pods_of(cluster, "nats")) == BROKERS
    assert {service: len(pods_of(cluster, service)) for service in DECIDING} == dict.fromkeys(DECIDING, 2)


@pytest.mark.parametrize("broker", range(BROKERS))
def test_pods_start_while_a_broker_and_one_of_each_service_are_lost(cluster: Cluster, space: str, broker: int) -> None:
    """Each broker once, so the leaders of every stream are among them; no slice moves and none is with two pods."""
    before = devices(cluster, space)
    lost = [read(cluster, f"--namespace={NAMESPACE}", f"pod/sluice-nats-{broker}")]
    lost += [pods_of(cluster, service)[broker % 2] for service in DECIDING]
    with judging.watched(cluster):
        for each in lost:
            force_delete(cluster, each)
        apply(cluster, space, pod(f"after-{broker}"))
        wait_for(cluster, space, "condition=Ready", f"pod/after-{broker}", within_s=SERVED_S)
        product.wait(cluster)
    after = devices(cluster, space)
    assert {name: after[name] for name in before} == before
    assert not (wrong := judging.faults(cluster)), wrong
