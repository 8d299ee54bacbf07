"""
Processes as the kernel shows them: whose pod they are of, what they are called, since when they run, what they hold.

Read from a `/proc`, which must be the host's: inside a PID namespace of its own an agent would miss the tenants'
processes, or take one for another. Processes vanish while they are read; one that is gone is told as nothing, never as
an error. Nothing here decides, waits or touches a process.
"""

import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from sluice.runtime import logs

FDS_PER_PROCESS_MAX = 20_000
"""Open files looked at per process. The CUDA library opens its devices at its start, so they come first."""
FDS_MAX = 1_000_000
"""Open files looked at per scan, about a second of work on one core (some microseconds each)."""
_READ_MAX_BYTES = 64 * 1024
"""No file of /proc that is read here is as long: a cgroup path is at most 4096 bytes, a process in at most 20."""
_STAT_STARTED_AT = 22 - 3
"""`starttime` is field 22 of /proc/<pid>/stat, and what follows the name in brackets begins with field 3 (proc(5))."""

# The kubelet names a pod's cgroup `pod<uid>` (driver cgroupfs) or `kubepods[-<class>]-pod<uid>.slice` (driver systemd,
# where a dash would begin a child, so the uid's dashes are underscores): kubernetes/kubernetes,
# pkg/kubelet/cm/{pod_container_manager,cgroup_manager}_linux.go. kind sets `kubelet` or `kubelet-` before it. A static
# pod's uid is a hash of 32 digits. Only these shapes count: `podman-1.scope` and `podruntime.slice` are no pods.
_POD = re.compile(
    r"(?:[\w-]*kubepods(?:-burstable|-besteffort)?-)?"
    r"pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_TICKS = re.compile(r"[0-9]{1,20}")
_DEVICE_NAME = re.compile(r"nvidia(\d+|ctl|-cap\d+|-uvm)")


class Processes:
    """The processes of one machine. Holds nothing, so that any thread may ask."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        """Read them below `root`."""
        self.root = root

    def pids(self) -> Iterator[int]:
        """All processes there are now. Raises OSError when there is no such /proc."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name)

    def owner_of(self, pid: int) -> str:
        """
        The UID of the pod whose cgroup the process is in, cgroup v1 or v2; "" for none.

        Of pods inside pods it is the outermost: the one that this node's kubelet knows.
        """
        for line in self._read(pid, "cgroup").splitlines():
            path = line.split(":", 2)[-1]
            for part in path.split("/"):
                if found := _POD.fullmatch(part):
                    return found["uid"].replace("_", "-")
        return ""

    def name_of(self, pid: int) -> str:
        """The name of its command, at most 15 characters (comm in proc(5)); "" when it is gone."""
        return self._read(pid, "comm").removesuffix("\n")

    def started_at(self, pid: int) -> int:
        """When it began, in clock ticks since boot; 0 when it is gone or a zombie. With the pid it names a process."""
        # The name may hold spaces and brackets, so what follows the last bracket counts.
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        if len(fields) <= _STAT_STARTED_AT or fields[0] in {"Z", "X", "x"}:
            return 0
        ticks = fields[_STAT_STARTED_AT]
        return int(ticks) if _TICKS.fullmatch(ticks) else 0

    def command_of(self, pid: int) -> tuple[str, ...]:
        """Its arguments, the program first; empty when it is gone, or a thread of the kernel."""
        line = self._read(pid, "cmdline")
        return tuple(line.removesuffix("\0").split("\0")) if line else ()

    def environment_of(self, pid: int) -> dict[str, str]:
        """What it was started with; empty when it is gone, or of another user and we are not root."""
        pairs = (variable.partition("=") for variable in self._read(pid, "environ").split("\0"))
        return {name: value for name, _, value in pairs if name}

    def with_open(self, paths: Collection[str]) -> tuple[int, ...]:
        """
        The processes that have one of these device files open, under whatever name; our own is left out.

        A process whose files may not be read is skipped: without CAP_SYS_PTRACE those of other users are. So is one
        that closed the file and kept a mapping of it. At most FDS_MAX files are looked at; a scan that ends there is
        told in the log. Raises OSError when there is no /proc.
        """
        wanted = frozenset(paths)
        devices = frozenset(device for path in wanted if (device := _device(path)) is not None)
        left = FDS_MAX
        found = []
        own = self._own_pid()
        for pid in sorted(self.pids()):
            if pid == own:
                continue
            looked, holds = self._holds(pid, wanted, devices, min(left, FDS_PER_PROCESS_MAX))
            if holds:
                found.append(pid)
            left -= looked
            if left <= 0:
                logs.get("processes").warning(
                    "not all open files were looked at", processes_max=pid, files_max=FDS_MAX, paths=sorted(wanted)
                )
                break
        return tuple(found)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _holds(self, pid: int, paths: frozenset[str], devices: frozenset[int], limit: int) -> tuple[int, bool]:
        """How many of its open files were looked at, and whether one is among the wanted."""
        looked = 0
        try:
            with os.scandir(self.root / str(pid) / "fd") as files:
                for file in files:
                    if looked >= limit:
                        break
                    looked += 1
                    if _is_one_of(file.path, paths, devices):
                        return looked, True
        except OSError:  # it is gone, or not ours to look into
            return looked, False
        return looked, False

    def _own_pid(self) -> int:
        """Ours as this /proc counts; another namespace than ours counts otherwise, so os.getpid() could be wrong."""
        try:
            return int((self.root / "self").readlink().name)
        except (OSError, ValueError):
            return 0

    def _read(self, pid: int, name: str) -> str:
        try:
            with (self.root / str(pid) / name).open("rb") as file:
                return file.read(_READ_MAX_BYTES).decode("utf-8", "replace")
        except OSError:  # it is gone (ENOENT, ESRCH), or not ours to look into
            return ""


def _is_one_of(link: str, paths: frozenset[str], devices: frozenset[int]) -> bool:
    """
    Whether an open file is one of the devices, by name, or by number where a container has it under another name.

    Only what looks like a device is asked for its number: asking may hang on a file of a dead network mount.
    """
    try:
        target = os.readlink(link)  # noqa: PTH115 - many thousands of times
        if target in paths:
            return True
        if not devices or not (target.startswith("/dev/") or _DEVICE_NAME.fullmatch(target.rpartition("/")[2])):
            return False
        return _device(link) in devices
    except OSError:  # closed meanwhile
        return False


def _device(path: str) -> int | None:
    """The number of a character device; None for anything else."""
    try:
        status = os.stat(path)  # noqa: PTH116 - likewise
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None
