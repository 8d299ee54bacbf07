"""MPS homes for tests: real daemons in a short directory, clients as real processes, and a search for what was left."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from factories.agent_driver import daemons_below, short_folder
from factories.gpus import mps_client
from factories.waiting import wait_until

from sluice.contracts.ids import GpuUuid, HomeId
from sluice_node_agent.core.events import MpsSeen
from sluice_node_agent.core.instructions import StartMps, StopMps, WatchMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.simulated.mps_program import SWITCHES_VARIABLE, install

PATIENCE_S = 60.0
H1, H2 = HomeId("h1"), HomeId("h2")
GPU, OTHER_GPU = GpuUuid("GPU-1"), GpuUuid("GPU-2")
LIMITS = MpsLimits(active_thread_percentage=30, memory_mib=1500)
TENANT = 1000
STRANGER = 2000


class Client:
    """A client of the stand-in: a process that requests a server, and then memory."""

    def __init__(self, pipe: Path, *options: str, quota_socket: str = "") -> None:
        """Start it on a home's pipe directory. `options` as `mps_client` has them."""
        command = [*mps_client.COMMAND, *options]
        told = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "SLUICE_QUOTA_SOCKET": quota_socket}
        self.process = subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, "the client received nothing"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the client ended"
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        heard: dict[str, Any] = json.loads(line)
        return heard

    def allocate(self, memory_mib: int) -> dict[str, Any]:
        self.process.stdin.write(f"{memory_mib}\n".encode())
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def mps_processes(root: Path) -> list[psutil.Process]:
    found = []
    for process in daemons_below(root):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("nvidia-cuda-mps"):
                found.append(process)
    return found


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A `short_folder` that every user may pass."""
    with short_folder() as path:
        path.chmod(0o711)
        yield path


class PodProcesses(Processes):
    """Says of some processes that they are in a pod."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[int, str] = {}

    def owner_of(self, pid: int) -> str:
        return self.pods.get(pid, "")


@dataclass
class Place:
    """A directory with the stand-in and homes, and what a test started there."""

    path: Path
    timeout_s: float = 60.0
    processes: PodProcesses = field(default_factory=PodProcesses)
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control = install(self.path / "bin")
        self.root = self.path / "r"
        self.switches = self.path / "switches.json"
        self.environment = {SWITCHES_VARIABLE: str(self.switches)}
        self.daemons = self.reborn()

    def reborn(self) -> MpsDaemons:
        """What a new agent has: nothing but the directories."""
        self.daemons = MpsDaemons(
            self.root, self.control, self.processes, timeout_s=self.timeout_s, environment=self.environment
        )
        return self.daemons

    def hurried(self) -> MpsDaemons:
        """Daemons whose calls time out soon, for calls that are expected to take too long."""
        return MpsDaemons(self.root, self.control, self.processes, timeout_s=3.0, environment=self.environment)

    def switch(self, *names: str) -> None:
        """Have these switches on, and no other."""
        self.switches.write_text(json.dumps(dict.fromkeys(names, True)))

    def client(self, home: HomeId = H1, *, uid: int = TENANT, options: tuple[str, ...] = ()) -> Client:
        """A client of a home; it may not be served yet."""
        client = Client(self.root / home / "pipe", "--uid", str(uid), *options)
        self.clients.append(client)
        return client

    def seen(self, running: tuple[int, int], home: HomeId = H1) -> MpsSeen:
        return self.daemons.look(WatchMps(7, home, *running, uid=TENANT))

    def left(self) -> list[psutil.Process]:
        return mps_processes(self.path)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.processes.started_at(pid) == 0, "the daemon dies")

    def stop(self) -> None:
        """The home is stopped, and nothing of it is left."""
        self.daemons.stop(stop_order())
        assert self.left() == []


@contextlib.contextmanager
def mps_place() -> Iterator[Place]:
    with short_directory() as path:
        place = Place(path)
        try:
            yield place
        finally:
            for client in place.clients:
                client.end()


def start_order(home: HomeId = H1, device: str = GPU, limits: MpsLimits = LIMITS, uid: int = TENANT) -> StartMps:
    gpu = GPU if device == GPU else OTHER_GPU
    return StartMps(1, home, gpu, device, "team-a", uid, limits)


def stop_order(home: HomeId = H1, pid: int = 0, started_at: int = 0) -> StopMps:
    return StopMps(2, home, pid, started_at)


def refusal_of(call: Callable[[], object]) -> str:
    """Why a call is refused, which must be one sentence on one line."""
    with pytest.raises(MpsError) as refused:
        call()
    text = str(refused.value)
    assert "\n" not in text
    return text
