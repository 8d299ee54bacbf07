"""
One real cluster for all tests of a run: started when the first asks for it, removed with everything at the end.

Tests that ask for it have the marker `cluster`: `make test-cluster` runs them, `make test` does not. While you write
one, SLUICE_CLUSTER_NAME names a cluster of `python tests/cluster up --name NAME`, which stays up with what is in it.
"""

import json
import os
import secrets
from collections.abc import Iterator

import pytest
from cluster import gpu_pods, handed_over, judging, product, remains
from cluster.harness import cluster as clusters
from cluster.harness.binaries import NEWEST
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

NAME = os.environ.get("SLUICE_CLUSTER_NAME")
TEST_S = 600
"""The longest that a test may take, with the start of the cluster or its removal."""
LAST = "test_uninstalled.py"
MINOR = os.environ.get("SLUICE_CLUSTER_KUBERNETES", NEWEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are selected by their markers. What removes Sluice comes last."""
    for item in items:
        if isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TEST_S))
    items.sort(key=lambda item: item.path.name == LAST)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane and two workers; what is missing was built by `python tests/cluster build`."""
    if why := clusters.why_impossible():
        pytest.skip(why)
    if NAME:
        yield clusters.find(NAME)
        return
    with clusters.running("test", minor=MINOR) as running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """
    The cluster with Sluice in it, installed as docs/install.md says, on simulated GPUs: two A100-40GB per worker.
    Nodes hand devices over by ResourceClaims where a namespace asks for it.

    A test leaves it as it was: its namespaces are gone, every machine is ready, and nothing of Sluice is changed.
    """
    if not cluster.kubectl("get", "namespace", "sluice-system", "--ignore-not-found"):
        product.bring_images(cluster)
        remains.keep(cluster)
        product.install(cluster, components=["resource-claims"])
    return cluster


@pytest.fixture(params=["tickets"])
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """
    A namespace of the test's own, removed with everything in it.

    Its pods get their devices by tickets; a module of tests about ResourceClaims parametrizes it with `dra`.
    """
    name = f"test-{secrets.token_hex(3)}"
    labelled = {"name": name, "labels": {"sluice.dev/hand-over": request.param}}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled}
    cluster.kubectl("create", "--filename=-", stdin=json.dumps(made))
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130)


@pytest.fixture
def handed_back(installed: Cluster) -> Iterator[None]:
    """
    No device is with two pods at any time, and at the end no slice, claim, finalizer or CDI file is left.

    Name it before `namespace`: it looks when that is gone.
    """
    with judging.watched(installed):
        yield
    until("every slice is given back", lambda: Unmet(found) if (found := gpu_pods.slices(installed)) else True)
    handed_over.until_none_left(installed)
    assert not (wrong := judging.faults(installed)), wrong


@pytest.fixture
def given_back(installed: Cluster) -> Iterator[None]:
    """At the end as much of every GPU is in use as before. Name it before `namespace`: it looks when that is gone."""
    gpu_pods.until_shown(installed)
    before = gpu_pods.used(installed)
    yield
    until(f"in use is {before} again", lambda: gpu_pods.used(installed) == before)
