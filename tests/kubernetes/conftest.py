"""
The cluster that this suite runs on: the fake by default, a real one where SLUICE_TEST_KUBECONFIG names its kubeconfig.

Not KUBECONFIG itself: that is set on many desks, and running all tests must not touch production.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from factories.cluster.kubernetes import Cluster
from fake_kube.server import FakeKube

from sluice.contracts.kube.names import LABEL_IGNORE

REAL = os.environ.get("SLUICE_TEST_KUBECONFIG", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for a module's tests."""
    if REAL:
        yield Cluster(Path(REAL))
        return
    with FakeKube() as fake:
        yield Cluster(fake.kubeconfig(tmp_path_factory.mktemp("kube") / "config"), fake)


@pytest.fixture
async def kube(server: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with open connections; what a test made outside its namespace is removed."""
    async with server.opened() as opened:
        yield opened
        await opened.cleaned()


@pytest.fixture
async def namespace(kube: Cluster) -> AsyncIterator[str]:
    """A namespace of the test's own, which a Sluice that is installed in a real cluster leaves alone."""
    name = await kube.namespace(**({LABEL_IGNORE: "true"} if kube.fake is None else {}))
    yield name
    await kube.delete(f"/api/v1/namespaces/{name}")
    for kind in ("clusterrolebindings", "clusterroles"):
        listed = await kube.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}")
        for each in listed.items:
            if each["metadata"]["name"].startswith(f"{name}-"):
                await kube.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{each['metadata']['name']}")


@pytest.fixture
def pods(namespace: str) -> str:
    """The path of the namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"
