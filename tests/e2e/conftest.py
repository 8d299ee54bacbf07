"""Real processes: `sluice up` as a person starts it, in folders of its own."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from factories.cluster.cluster_system import whole_on
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import scene_on
from factories.processes import kill_with_children, own_environment
from fake_kube.server import FakeKube

from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import NotAnsweringError, following
from sluice_console.shell.live.local_user import remember
from sluice_console.shell.live.running_systems import RunningSystem
from sluice_console.shell.process.power_off import power_off

EXAMPLES = Path(__file__).parents[2] / "examples"
READY_WITHIN_S = 90.0
SLUICE = (sys.executable, "-m", "sluice_console")


class Up:
    """One `sluice up` and its folders."""

    def __init__(self, base: Path) -> None:
        self.fleet = EXAMPLES / "fleet.toml"
        self.pods_dir = base / "pods"
        self.data_dir = base / "data"
        self.temporary = base / "tmp"
        self.log = base / "up.log"
        self.runtime = base / "runtime"
        for folder in (self.pods_dir, self.temporary, self.runtime):
            folder.mkdir(parents=True)
        self.environment = own_environment() | {
            "XDG_RUNTIME_DIR": str(self.runtime),
            "TMPDIR": str(self.temporary),
            # Else what a GPU has room for depends on whether there is a C compiler here.
            "SLUICE_NODE_AGENT_QUOTA_LIBRARY": "off",
        }
        self.process: psutil.Popen | None = None
        self.running: RunningSystem | None = None

    def start(self, *options: str, data: bool = True) -> None:
        """Start it without waiting."""
        where = ("--data", str(self.data_dir)) if data else ()
        page = () if "--web" in options else ("--web", "off")
        command = (*SLUICE, "up", "--fleet", str(self.fleet), "--pods", str(self.pods_dir), *where, *page, *options)
        with self.log.open("ab") as log:
            # In a group of its own, for it may be stopped: see `done` in test_run.py.
            self.process = psutil.Popen(command, env=self.environment, stdout=log, stderr=log, process_group=0)

    async def ready(self) -> RunningSystem:
        """How to reach it, once it says that it is ready."""
        async with asyncio.timeout(READY_WITHIN_S):
            while "ready: " not in self.said():
                assert self.process.poll() is None, self.said()
                await asyncio.sleep(0.05)
        (pointer,) = (self.runtime / "sluice").glob("*.json")
        self.running = msgspec.json.decode(pointer.read_bytes(), type=RunningSystem)
        remember(Path(self.running.data_dir), self.running.nats_url)
        return self.running

    async def started(self, *options: str) -> RunningSystem:
        self.start(*options)
        return await self.ready()

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def children(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def child(self, part: str) -> psutil.Process:
        """The one child whose command line holds `part`."""
        (found,) = [child for child in self.children() if any(part in word for word in child.cmdline())]
        return found

    def interrupt(self, within_s: float = 60.0) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(within_s)

    def kill(self) -> None:
        """The end of a test, whatever happened in it."""
        if self.process is None or self.process.poll() is not None:
            return
        kill_with_children(self.process)

    def add(self, *names: str) -> None:
        for name in names:
            (source,) = EXAMPLES.glob(f"*-{name}.yaml")
            self.write(source.name, source.read_text(encoding="utf-8"))

    def remove(self, name: str) -> None:
        (file,) = self.pods_dir.glob(f"*-{name}.yaml")
        file.unlink()

    def write(self, name: str, text: str) -> None:
        (self.temporary / name).write_text(text, encoding="utf-8")
        (self.temporary / name).rename(self.pods_dir / name)

    def put(self, name: str, *, namespace="default", spec=None, annotations=None, **keys: str) -> None:
        """A pod in the folder with these annotations (`keys` are Sluice's own), and more of its spec."""
        asked = {f"sluice.dev/{key.replace('_', '-')}": value for key, value in keys.items()} | (annotations or {})
        about = {"name": name, "namespace": namespace, "annotations": asked}
        whole = {"containers": [{"name": "main", "image": "train:1"}], **(spec or {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": whole}
        self.write(f"00-{name}.yaml", json.dumps(pod))

    def sluice(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a command as this user would."""
        command = (*SLUICE, *arguments)
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def done(self, *words: str, timeout_s: float = 90) -> str:
        """What a command prints, which must succeed."""
        done = self.sluice(*words, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str):
        return json.loads(self.done(*words, "--json"))

    @asynccontextmanager
    async def watching(self):
        """The running system's pods and GPUs, to be waited for."""
        async with connected(self.running.nats_url) as bus, following(bus) as live:
            yield Watching(live)


class Watching:
    """Waits for what people would see."""

    def __init__(self, live) -> None:
        self.live = live

    async def until(self, condition, what: str, within_s: float = 60.0):
        """What `condition(pods by name, gpus)` returns once it is true."""

        def look(fleet_state):
            pods = {pod.name or pod.origin: pod for pod in pods_document(fleet_state).pods}
            return condition(pods, gpus_document(fleet_state).gpus)

        try:
            return await self.live.until(look, within_s=within_s, what=what)
        except NotAnsweringError as error:
            pods = pods_document(self.live.fleet_state).pods
            error.add_note("\n".join(f"{pod.namespace}/{pod.name} {pod.state}: {pod.message}" for pod in pods))
            raise

    async def bound(self, name: str) -> PodDocument:
        """A pod, once it is bound and its slices are in the inventory."""

        def condition(pods, gpus):
            places = [place for gpu in gpus for place in gpu.instances if place.owner.endswith(f"/{name}")]
            there = bool(places) and all(place.state == "ready" for place in places)
            return pods[name] if there and name in pods and pods[name].state == "bound" else None

        return await self.until(condition, f"{name} to be bound")

    async def stands(self, name: str, state: str, words: str = "", within_s: float = 60.0) -> PodDocument:
        """A pod, once it is in this state and shows this text."""

        def condition(pods, _gpus):
            pod = pods.get(name)
            return pod if pod is not None and pod.state == state and words in pod.message else None

        return await self.until(condition, f"{name} to be {state} {words}", within_s)

    async def empty(self) -> None:
        """No pod is known and nothing is on any GPU."""
        await self.until(
            lambda pods, gpus: not pods and all(not gpu.instances and gpu.creatable_total == 19 for gpu in gpus),
            "everything to be given back",
        )


@pytest.fixture
def up(tmp_path):
    """A `sluice up` that is not started yet; nothing of it survives the test."""
    system = Up(tmp_path)
    with ExitStack() as stack:
        stack.callback(system.kill)
        yield system


@pytest.fixture(scope="module")
def shared(request, tmp_path_factory):
    """
    One `sluice up` for all tests of a module, with its FLEET and SETTINGS if it has such; each worker has its own.

    The name of its data is short: daemons' sockets are in there, and a unix socket's path has 107 bytes.
    """
    system = Up(tmp_path_factory.mktemp("shared"))
    if text := getattr(request.module, "FLEET", ""):
        system.fleet = system.temporary / "fleet.toml"
        system.fleet.write_text(text, encoding="utf-8")
    system.environment |= getattr(request.module, "SETTINGS", {})
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as folder:
        system.data_dir = Path(folder)
        try:
            system.start()
            asyncio.run(system.ready())
            yield system
        finally:
            system.kill()
            assert power_off(system.data_dir), "daemons are left"


@pytest.fixture
async def emptied(shared):
    """The shared system, in which nothing runs; what a test puts into its folder is taken away again."""
    yield shared
    for manifest in shared.pods_dir.iterdir():
        manifest.unlink()
    async with shared.watching() as watching:
        await watching.until(
            lambda pods, gpus: not pods and not any(gpu.instances for gpu in gpus), "everything to be given back"
        )


@pytest.fixture(scope="module")
def system(request, tmp_path_factory):
    """A whole Sluice with the NODES of the module and what else its SYSTEM says, and its cluster: a fake API server."""
    folder = tmp_path_factory.mktemp("cluster")
    with FakeKube() as fake:
        cluster = Cluster(fake.kubeconfig(folder / "kubeconfig"), fake)
        with whole_on(folder, cluster, request.module.NODES, **request.module.SYSTEM) as started:
            yield started, cluster


@pytest.fixture
async def scene(system):
    """A namespace of that cluster; at the end everything is given back, and no message on the bus was wrong."""
    async with scene_on(*system) as made:
        yield made
