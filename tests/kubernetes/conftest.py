"""The suite's cluster: the fake, or SLUICE_TEST_KUBECONFIG's; never KUBECONFIG's, which may be production."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import LABEL_TEST, MERGE, Cluster, pod
from factories.cluster.scenes import Scene, scene_on
from fake_kube.server import FakeKube

ABSENT = 404
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/sluice-left-alone"
LEFT_BY_A_KILLED_RUN = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/api/v1/nodes",
    "/api/v1/namespaces",
)
REAL = os.environ.get("SLUICE_TEST_KUBECONFIG", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if REAL:
        yield Cluster(Path(REAL))
        return
    with FakeKube() as fake:
        yield Cluster(fake.kubeconfig(tmp_path_factory.mktemp("kube") / "config"), fake)


@pytest.fixture(scope="session", autouse=True)
def room_on_a_real_cluster() -> Iterator[None]:
    """Remove what a killed run left, and keep an installed Sluice and its policy off the tests' namespaces."""
    if not REAL:
        yield
        return
    server = Cluster(Path(REAL))
    asyncio.run(_exempt(server))
    yield
    asyncio.run(_hold(server))


async def _exempt(server: Cluster) -> None:
    async with server.opened() as kube:
        for kind in LEFT_BY_A_KILLED_RUN:
            for each in (await kube.get(kind, labelSelector=LABEL_TEST)).items:
                await kube.delete(f"{kind}/{each['metadata']['name']}")
        if (await kube.get(BINDING)).code == ABSENT:
            return
        chosen = {"namespaceSelector": {"matchExpressions": [{"key": LABEL_TEST, "operator": "DoesNotExist"}]}}
        changed = await kube.patch(BINDING, {"spec": {"matchResources": chosen}}, MERGE)
        assert changed.code == 200, changed
        name = await kube.namespace()
        path = f"/api/v1/namespaces/{name}"
        await kube.until(lambda: kube.post(f"{path}/pods", pod(), dryRun="All"), 201)
        await kube.delete(path)


async def _hold(server: Cluster) -> None:
    async with server.opened() as kube:
        await kube.patch(BINDING, {"spec": {"matchResources": None}}, MERGE)


@pytest.fixture
async def kube(server: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with open connections; what a test made outside its namespace is removed."""
    async with server.opened() as opened:
        yield opened
        await opened.cleaned()


@pytest.fixture
async def namespace(kube: Cluster) -> AsyncIterator[str]:
    """A namespace of the test's own, which a Sluice that is installed in a real cluster leaves alone."""
    name = await kube.namespace()
    yield name
    await kube.delete(f"/api/v1/namespaces/{name}")
    for kind in ("clusterrolebindings", "clusterroles"):
        listed = await kube.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}")
        for each in listed.items:
            if each["metadata"]["name"].startswith(f"{name}-"):
                await kube.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{each['metadata']['name']}")


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture(scope="module")
def system(
    request: pytest.FixtureRequest, server: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterSystem]:
    """A whole Sluice, with the NODES of the module and what else its SYSTEM says."""
    module = request.module
    with whole_on(tmp_path_factory.mktemp("whole"), server, module.NODES, **module.SYSTEM) as started:
        yield started


@pytest.fixture
async def scene(system: ClusterSystem, server: Cluster) -> AsyncIterator[Scene]:
    """A namespace of the test's own on the `system` of its module; all that it holds is given back."""
    async with scene_on(system, server) as made:
        yield made
