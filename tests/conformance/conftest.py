"""
Four kinds of broker, so that every promise of the bus is tested on all of them by the same tests.

`memory` is the model that other tests and the simulator stand on, `nats` one real server, `cluster` three, `container`
one in an image, where a Docker engine answers. In the same way two kinds of GPUs: `simulated`, and `nvml` on a library
of our own.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
import pytest_asyncio
from factories.broker.bus_rigs import MemoryRig, NatsRig, Rig, SharedClusterRig, ensured
from factories.broker.containers import ContainerLaunch, why_not
from factories.broker.nats_server import Broker, Launch, launch_process
from factories.images import build_image, remove_image
from nvml.backends import DeviceRig, NvmlRig, SimulatedRig, fleet
from nvml.build import Built

from sluice.runtime.bus import Bus


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[[], Awaitable[Broker]]]:
    """Three servers, started when the first test wants them."""
    async with AsyncExitStack() as stack:
        running: list[Broker] = []

        async def started() -> Broker:
            if not running:
                running.append(await stack.enter_async_context(Broker(tmp_path_factory.mktemp("cluster"), size=3)))
            return running[0]

        yield started


@pytest.fixture(scope="session")
def containers() -> Iterator[Launch]:
    """How to start servers in containers; skips where there are none. The image is made once and removed again."""
    if why := why_not():
        pytest.skip(f"no broker in a container: {why}")
    image = build_image("broker", f"test-bus-{os.getpid()}")
    yield ContainerLaunch(image)
    remove_image(image)


@pytest.fixture(params=["process", "container"])
def launch(request: pytest.FixtureRequest) -> Launch:
    """Each way to start a real server in turn."""
    if request.param == "process":
        return launch_process
    found: Launch = request.getfixturevalue("containers")
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def nats(tmp_path: Path, launch: Launch) -> AsyncIterator[NatsRig]:
    """One server of a test's own, with streams."""
    async with one_server(tmp_path, launch) as rig:
        yield rig


@asynccontextmanager
async def one_server(directory: Path, launch: Launch) -> AsyncIterator[NatsRig]:
    async with Broker(directory, launch=launch) as broker, AsyncExitStack() as stack:
        rig = NatsRig(broker, stack)
        await ensured(await rig.bus("administrator"))
        yield rig


@pytest_asyncio.fixture(loop_scope="session", params=["memory", "nats", "cluster", "container"])
async def rig(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: Callable[[], Awaitable[Broker]]
) -> AsyncIterator[Rig]:
    """Each kind of broker in turn, with empty streams."""
    if request.param == "memory":
        yield MemoryRig()
    elif request.param == "cluster":
        async with AsyncExitStack() as stack:
            three = SharedClusterRig(await cluster(), stack)
            await ensured(await three.bus("administrator"))
            yield three
            await three.wipe()
    else:
        launch = launch_process if request.param == "nats" else request.getfixturevalue("containers")
        async with one_server(tmp_path, launch) as one:
            yield one


@pytest_asyncio.fixture(loop_scope="session")
async def bus(rig: Rig) -> Bus:
    """An allocator's connection to each kind of broker."""
    return await rig.bus()


@pytest.fixture
def make_nvml(nvml_library: Built, tmp_path: Path) -> Iterator[Callable[[str], NvmlRig]]:
    """Makes NVML devices of a fleet file's `gpus`; once in a test, because a process has one NVML."""
    made: list[NvmlRig] = []

    def make(gpus: str) -> NvmlRig:
        assert not made, "a process has one NVML"
        made.append(NvmlRig(fleet(gpus), tmp_path, nvml_library))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture(params=["simulated", "nvml"])
def make_devices(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], DeviceRig]]:
    """Makes each kind of devices in turn, of a fleet file's `gpus`; once in a test."""
    if request.param == "nvml":
        yield request.getfixturevalue("make_nvml")
        return
    with ExitStack() as stack:
        yield lambda gpus: stack.enter_context(closing(SimulatedRig(fleet(gpus), tmp_path)))
