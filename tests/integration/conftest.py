"""What several files start from: a node, MPS daemons, an API server, a browser."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from factories.cluster.kubelet_node import KubeletNode
from factories.gpus.mps import Place, mps_place
from factories.web_page import CHROMIUM, CHROMIUM_OPTIONS
from fake_kube.server import FakeKube
from playwright.async_api import Browser, async_playwright

from sluice_pod_watcher.shell.kube.client import KubeApi


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[KubeletNode]:
    """A node with a running CSI driver, in a privileged container or on the host, in a folder of its own."""
    with closing(KubeletNode(getattr(request, "param", "container"))) as there:
        there.start()
        yield there


@pytest.fixture
def place() -> Iterator[Place]:
    with mps_place() as place:
        yield place


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    """An API server without nodes."""
    with FakeKube() as fake:
        yield fake


@pytest.fixture
async def api(kube: FakeKube, tmp_path: Path) -> AsyncIterator[KubeApi]:
    """The pod-watcher's client of it, with the kubeconfig `config`."""
    made = await KubeApi.connect(kube.kubeconfig(tmp_path / "config"))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for a file, with a profile of its own: it takes a second to start."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_OPTIONS))
        yield chromium
        await chromium.close()
