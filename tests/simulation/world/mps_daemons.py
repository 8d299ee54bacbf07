"""The MPS daemons of one machine: processes that no agent's death ends, and the directories that clients find them by.

As strict as the real ones (NVIDIA's MPS guide): a server serves one user, limits hold for clients that connect later,
a fault hits every client and keeps new ones out until those have ended. Shares no code with what it judges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world.hardware import Gpu, Process

MPS_ROOT = "/var/lib/sluice/mps"
"""Below it every home has its directories: `<home>/pipe` and `<home>/log`."""


class DaemonRefusedError(Exception):
    """The daemon, or the attempt to start it, said no."""


@dataclass(frozen=True, slots=True)
class Directory:
    """What is written on the disk of who a home is for. Without it no client of the home finds a daemon."""

    home: str
    gpu: str
    device: str
    namespace: str
    uid: int


@dataclass(slots=True)
class Daemon:
    """One daemon with its server. A dead one stays listed until it is restarted or removed.

    `answered`: a start succeeded; one that seemed not to start may be ended by its starter. `noticed_at`: when its
    agent noticed its death; what it did before that is no error.
    """

    directory: Directory
    pid: int
    started_at: int
    percent: int
    memory_mib: int
    alive: bool = True
    fault: str = ""
    answered: bool = False
    noticed_at: float = inf

    @property
    def home(self) -> str:
        return self.directory.home

    @property
    def device(self) -> str:
        return self.directory.device


@dataclass(slots=True)
class Daemons:
    """All homes of one machine. `watcher` observes each start by an agent, and each stop beforehand."""

    directories: dict[str, Directory] = field(default_factory=dict)
    listed: dict[str, Daemon] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    """Homes that were cleaned away: their names may not come again."""
    refusals: deque[str] = field(default_factory=deque)
    """Faults to come: how the next starts fail. `before` leaves nothing, `after` a daemon that runs."""
    watcher: Callable[[str, Daemon], None] = lambda _what, _daemon: None
    on_terminated: Callable[[Daemon, str], None] = lambda _daemon, _owner: None
    """Called when a client is let go by order: of which daemon, and whose it is."""

    def alive(self, home: str) -> Daemon | None:
        daemon = self.listed.get(home)
        return daemon if daemon is not None and daemon.alive else None

    def serving(self, device: str) -> list[Daemon]:
        """All running daemons of a device; more than one is an error of their starter."""
        return [daemon for daemon in self.listed.values() if daemon.alive and daemon.device == device]

    def prepare(self, directory: Directory) -> None:
        """Write the home's directories: what comes first when a daemon is started. Raises DaemonRefusedError."""
        there = self.directories.get(directory.home)
        if there is not None and there != directory:
            raise DaemonRefusedError(f"the directory is of {there}")
        if directory.home in self.ended:
            raise DaemonRefusedError(f"home {directory.home} is used a second time")
        self.directories[directory.home] = directory

    def start(self, directory: Directory, gpu: Gpu, pid: int, now_ticks: int, percent: int, memory_mib: int) -> Daemon:
        """Start a daemon with its server, or find it running and set its limits. Raises DaemonRefusedError.

        The server needs the device to be there, and on a GPU in compute mode EXCLUSIVE_PROCESS to be the only one.
        """
        failing = self.refusals.popleft() if self.refusals else ""
        if failing == "before":
            raise DaemonRefusedError("failed by plan, nothing runs")
        self.prepare(directory)
        daemon = self.alive(directory.home)
        if daemon is None:
            if gpu.lost or not gpu.has_device(directory.device):
                raise DaemonRefusedError(f"no device {directory.device}")
            if gpu.exclusive and any(not process.home for process in gpu.processes):
                raise DaemonRefusedError("another process has the GPU for itself")
            daemon = Daemon(directory, pid, now_ticks, percent, memory_mib)
            self.listed[directory.home] = daemon
            gpu.servers[directory.home] = directory.device
            self.watcher("started", daemon)
        daemon.percent, daemon.memory_mib = percent, memory_mib
        if failing:
            raise DaemonRefusedError("failed by plan, the daemon runs")
        daemon.answered = True
        return daemon

    def limit(self, home: str, percent: int, memory_mib: int) -> None:
        """Set the limits of clients to come. Raises DaemonRefusedError."""
        daemon = self.alive(home)
        if daemon is None:
            raise DaemonRefusedError(f"no daemon of {home} answers")
        daemon.percent, daemon.memory_mib = percent, memory_mib

    def stop(self, home: str, gpus: dict[str, Gpu]) -> None:
        """Stop a daemon, if it runs, and remove its directories. Clients that it still has lose the device."""
        daemon = self.listed.get(home)
        if daemon is not None:
            if daemon.alive:
                self.watcher("stopping", daemon)
            self.die(home, gpus)
            del self.listed[home]
        if self.directories.pop(home, None) is not None:
            self.ended[home] = None

    def die(self, home: str, gpus: dict[str, Gpu]) -> list[str]:
        """Daemon and server end, and with them every client. Returns whose processes ended. The directories stay."""
        daemon = self.alive(home)
        if daemon is None:
            return []
        daemon.alive = False
        gpu = gpus[daemon.directory.gpu]
        del gpu.servers[home]
        return _end_clients(gpu, home)

    def fail(self, home: str, gpus: dict[str, Gpu]) -> list[str]:
        """A client's error hits all: they end, and the server takes no new ones for now. Returns whose ended."""
        daemon = self.alive(home)
        if daemon is None:
            return []
        daemon.fault = "a client's memory access was illegal"
        return _end_clients(gpus[daemon.directory.gpu], home)

    def reboot(self, *, homes_survive: bool) -> None:
        """No process survives; the directories do where they lie on a disk."""
        self.listed.clear()
        if not homes_survive:
            self.ended.update(dict.fromkeys(self.directories))
            self.directories.clear()


def clients_of(gpu: Gpu, home: str) -> list[Process]:
    """The processes that the server of a home serves."""
    return [process for process in gpu.processes if process.home == home]


def let_go(gpu: Gpu, home: str, pids: tuple[int, ...]) -> list[str]:
    """The server lets go of clients, of each once: asked again, the daemon would be deaf. Returns whose they are.

    They compute no more. Their processes live on as its clients, with what memory they have, until they end.
    """
    found = [process for process in clients_of(gpu, home) if process.pid in pids and not process.terminated]
    for process in found:
        gpu.processes[gpu.processes.index(process)] = replace(process, terminated=True)
    return [process.owner for process in found]


def _end_clients(gpu: Gpu, home: str) -> list[str]:
    ended = clients_of(gpu, home)
    gpu.processes = [process for process in gpu.processes if process not in ended]
    return [process.owner for process in ended]
