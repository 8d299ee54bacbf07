"""
What can be wrong with a node before an agent runs on it, told in plain words with what to do about it.

Each check looks at one thing of a `Machine` and returns findings: data, never an exception. Everything that it looks
at is injected, so each finding has a test. A check changes nothing: it starts no daemon, takes no lock, writes no file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.device.port import GpuBackend
from sluice_node_agent.device.processes import Processes

Level = Literal["ok", "warning", "problem"]
"""`warning`: it works, but not everything, or not safely. `problem`: it must be fixed before the node is of use."""

CAP_SYS_PTRACE, CAP_SYS_ADMIN = 19, 21
"""Bits of a capability set (capability(7), include/uapi/linux/capability.h)."""


_VERSION_MAX = 40
"""Characters of a version; `550.163.01` has ten."""


class Check(StrEnum):
    """What is looked at. Each has a row in docs/node.md."""

    SETTINGS = "settings"
    DRIVER = "driver"
    LIBRARY = "library"
    GPUS = "gpus"
    DRIVER_FOR_GPU = "driver-for-gpu"
    MIG = "mig"
    INSTANCES = "foreign-instances"
    COMPUTE_MODE = "compute-mode"
    RIGHTS = "rights"
    CAPABILITY_FILES = "capability-files"
    HOST_PROCESSES = "host-processes"
    MPS = "mps"
    DIRECTORIES = "directories"
    TICKETS = "tickets"
    SOCKET_PATHS = "socket-paths"
    JOURNAL = "journal"
    AGENT = "agent"
    MANAGERS = "other-managers"
    MONITORS = "monitoring"
    FOREIGN_MPS = "foreign-mps"
    TOOLKIT = "container-toolkit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do, and is empty when all is well."""

    check: Check
    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program did: its exit code (None: it could not be started, or took too long), and what it printed."""

    code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """What a journal says, or in `problem` why it cannot be read. `exists` is False before the first start."""

    exists: bool = False
    records: tuple[Record, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All that preflight looks at."""

    node: str
    simulated: bool
    root: Path = Path("/")
    """Below it are `dev` and `proc/driver`."""
    processes: Processes = field(default_factory=Processes)
    uid: int = 0
    """The user that the agent is to run as."""
    capabilities: int = 0
    """Its effective set, as a bit mask."""
    data_dir: Path
    mps_root: Path
    """The node's own MPS directory: each home has one in it."""
    pods_dir: Path | None = None
    """Where the tickets of a kubelet's pods are; None where there is no kubelet."""
    mps_control: str = ""
    """The control program's path; empty: none was found; `off`: the operator wants no MPS."""
    mps_asked: str = ""
    """What the operator asked for by name, if it was not found."""
    open_gpus: Callable[[], GpuBackend]
    """Raises BackendError or DeviceError."""
    exclusive: Callable[[], frozenset[GpuUuid] | None]
    """The GPUs in compute mode EXCLUSIVE_PROCESS; None: not known."""
    journal: ReadJournal = ReadJournal()
    run: Callable[[Sequence[str]], Ran]
    find_program: Callable[[str], str]
    """The path of a program, empty when it is not there."""

    def may(self, capability: int) -> bool:
        """Whether the agent has this right."""
        return bool(self.capabilities >> capability & 1)


@dataclass(frozen=True, slots=True)
class DriverReport:
    """What the driver said of itself and of all GPUs."""

    driver_version: str = ""
    gpus: tuple[GpuReport, ...] = ()
    nameless: Mapping[int, str] = field(default_factory=dict)
    """Those that cannot tell their UUID: by index, why."""


def version_of(text: str) -> tuple[int, ...]:
    """A version as numbers, to compare; empty for none."""
    return tuple(int(part) for part in text[:_VERSION_MAX].split(".") if part.isdecimal())


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level among them."""
    order: tuple[Level, ...] = ("problem", "warning", "ok")
    return next((level for level in order if any(finding.level == level for finding in findings)), "ok")


def in_order(findings: Sequence[Finding]) -> Iterator[Finding]:
    """As they are shown: what is wrong last, where it is seen; else in the order of the checks."""
    for level in ("ok", "warning", "problem"):
        for finding in findings:
            if finding.level == level:
                yield finding
