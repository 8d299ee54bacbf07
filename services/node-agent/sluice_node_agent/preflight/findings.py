"""What can be wrong with a node before an agent runs on it, each with its remedy. Each check looks at one part of a
`Machine` and returns findings, never an exception. It starts no daemon, takes no lock, writes no file."""

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
"""`warning`: it works, but incompletely or unsafely. `problem`: it must be fixed before the node is usable."""

CAP_SYS_PTRACE, CAP_SYS_ADMIN = 19, 21
"""Bits of a capability set (capability(7), include/uapi/linux/capability.h)."""


_VERSION_MAX = 40
"""Longest version in characters; `550.163.01` has ten."""


class Check(StrEnum):
    """All checks. Each has a row in docs/node.md."""

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
    HAND_OVER = "hand-over"

    def ok(self, what: str) -> "list[Finding]":
        return [Finding(self, "ok", what)]

    def warning(self, what: str, remedy: str) -> "list[Finding]":
        return [Finding(self, "warning", what, remedy)]

    def problem(self, what: str, remedy: str) -> "list[Finding]":
        return [Finding(self, "problem", what, remedy)]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` says what to do, and is empty when all is well."""

    check: Check
    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A program's result: its exit code (None: it could not be started, or took too long), and its output."""

    code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """A journal's content, or in `problem` why it cannot be read. `exists` is False before the first start."""

    exists: bool = False
    records: tuple[Record, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All inputs of preflight."""

    node: str
    simulated: bool
    root: Path = Path("/")
    """The directory of `dev` and `proc/driver`."""
    processes: Processes = field(default_factory=Processes)
    uid: int = 0
    capabilities: int = 0
    """Its effective set, as a bit mask."""
    data_dir: Path
    mps_root: Path
    """The node's own MPS directory, with one directory per home."""
    pods_dir: Path | None = None
    """The directory of pods' tickets; None without a kubelet."""
    hand_over: bool = False
    cdi_dir: Path = Path("/var/run/cdi")
    why_no_cdi: Callable[[], str] = str
    """Why the driver cannot be described for CDI; empty when it can."""
    mps_control: str = ""
    """The control program's path; empty: none was found; `off`: MPS is switched off."""
    mps_asked: str = ""
    """The program that the setting names, if it was not found."""
    open_gpus: Callable[[], GpuBackend]
    """Raises BackendError or DeviceError."""
    exclusive: Callable[[], frozenset[GpuUuid] | None]
    """The GPUs in compute mode EXCLUSIVE_PROCESS; None: not known."""
    journal: ReadJournal = ReadJournal()
    run: Callable[[Sequence[str]], Ran]
    find_program: Callable[[str], str]

    def may(self, capability: int) -> bool:
        return bool(self.capabilities >> capability & 1)


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The driver's version and the reports of all GPUs."""

    driver_version: str = ""
    gpus: tuple[GpuReport, ...] = ()
    nameless: Mapping[int, str] = field(default_factory=dict)
    """GPUs that cannot read their UUID: index to reason."""


def version_of(text: str) -> tuple[int, ...]:
    """A version as numbers, to compare; empty for none."""
    return tuple(int(part) for part in text[:_VERSION_MAX].split(".") if part.isdecimal())


def worst(findings: Sequence[Finding]) -> Level:
    order: tuple[Level, ...] = ("problem", "warning", "ok")
    return next((level for level in order if any(finding.level == level for finding in findings)), "ok")


def in_order(findings: Sequence[Finding]) -> Iterator[Finding]:
    """In display order: the worst last, where it is seen; else in the order of the checks."""
    for level in ("ok", "warning", "problem"):
        for finding in findings:
            if finding.level == level:
                yield finding
