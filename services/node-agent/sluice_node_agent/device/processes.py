"""Processes as the kernel shows them, and programs that are run for one answer (`communicate`). The `/proc` must be the
host's, or an agent would miss tenants' processes. A process that vanishes while it is read counts as absent; a failure
to read is an OSError, never an empty result: mistaking one for the other would end what still runs."""

import contextlib
import errno
import os
import re
import selectors
import stat
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

FDS_MAX = 1_000_000
"""Open files checked per scan, some seconds of work on one core (some microseconds each)."""
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""No descriptor or memory is left: nothing was read, so nothing follows from it."""
_NOTHING_TO_SEE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.EACCES, errno.EPERM})
"""It is gone (also while it was read), or we may not read it."""
_READ_MAX_BYTES = 64 * 1024
"""No file of /proc that is read here is as long: a cgroup path has at most 4096 bytes, a process is in at most 20."""
_LONG_MAX_BYTES = 16 * 1024 * 1024
"""But mounts and environments are: a kubelet names every service of a namespace. Linux allows 6 MiB (execve(2))."""
_STAT_STARTED_AT = 22 - 3
"""`starttime` is field 22 of /proc/<pid>/stat; the fields after the name in brackets begin with field 3 (proc(5))."""

# The kubelet names a pod's cgroup `pod<uid>` (driver cgroupfs) or `kubepods[-<class>]-pod<uid>.slice` (driver systemd,
# where a dash would begin a child, so the uid's dashes are underscores): kubernetes/kubernetes,
# pkg/kubelet/cm/{pod_container_manager,cgroup_manager}_linux.go. kind sets `kubelet` or `kubelet-` before it. A static
# pod's uid is a hash of 32 digits. Only these shapes count: `podman-1.scope` and `podruntime.slice` are not pods.
_POD = re.compile(
    r"(?:[\w-]*kubepods(?:-burstable|-besteffort)?-)?"
    r"pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_STOPPED = frozenset({"T", "t"})
"""Stopped by a signal or a tracer (proc(5)). A process in a frozen cgroup of v2 looks asleep ("S")."""
_TICKS = re.compile(r"[0-9]{1,20}")
_DEVICE_NAME = re.compile(r"nvidia(\d+|ctl|-cap\d+|-uvm)")


class Processes:
    """The processes of one machine. Stateless, so thread-safe. Every method raises OSError."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self.root = root

    def pids(self) -> Iterator[int]:
        """All current processes. Raises OSError when there is no such /proc."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name)

    def owner_of(self, pid: int) -> str:
        """The UID of the pod whose cgroup the process is in (v1 or v2), of nested pods the outermost; "" for none."""
        return self.in_pod(pid)[0]

    def in_pod(self, pid: int) -> tuple[str, str]:
        """As `owner_of`, and the name of its container's cgroup, below the pod's."""
        for line in self._text(pid, "cgroup").splitlines():
            parts = line.split(":", 2)[-1].split("/")
            for number, part in enumerate(parts, 1):
                if found := _POD.fullmatch(part):
                    return found["uid"].replace("_", "-"), "".join(parts[number : number + 1])
        return "", ""

    def pod_of(self, pid: int) -> str:
        """As `owner_of`, also for a process whose first thread has ended, which is in no cgroup then (v1)."""
        return self.owner_of(pid) or next(filter(None, map(self.owner_of, self.threads_of(pid))), "")

    def name_of(self, pid: int) -> str:
        """The name of its command, at most 15 characters (comm in proc(5)); "" when it is gone."""
        return self._text(pid, "comm").removesuffix("\n")

    def started_at(self, pid: int) -> int:
        """When it began, in clock ticks since boot; 0 when it is gone or a zombie. With the pid it names a process."""
        fields = self._stat(pid, "stat")
        if len(fields) <= _STAT_STARTED_AT or fields[0] in {"Z", "X", "x"}:
            return 0
        ticks = fields[_STAT_STARTED_AT]
        return int(ticks) if _TICKS.fullmatch(ticks) else 0

    def is_stopped(self, pid: int) -> bool:
        """Whether one of its threads is stopped until it is continued."""
        states = (self._stat(pid, f"task/{thread}/stat")[:1] for thread in self._threads(pid))
        return any(state[0] in _STOPPED for state in states if state)

    def is_in_kernel(self, pid: int) -> bool:
        """Whether one of its threads waits in the kernel where no signal interrupts it (state D in proc(5))."""
        stats = ("stat", *(f"task/{thread}/stat" for thread in self._threads(pid)))
        return any(self._stat(pid, each)[:1] == ["D"] for each in stats)

    def command_of(self, pid: int) -> tuple[str, ...]:
        """Its arguments, the program first; empty when it is gone, or a kernel thread."""
        line = self._text(pid, "cmdline")
        return tuple(line.removesuffix("\0").split("\0")) if line else ()

    def environment_of(self, pid: int) -> dict[str, str]:
        """Its initial environment; empty when it is gone, or of another user and we are not root."""
        listed = self.read(pid, "environ", _LONG_MAX_BYTES).decode("utf-8", "replace")
        pairs = (variable.partition("=") for variable in listed.split("\0"))
        return {name: value for name, _, value in pairs if name}

    def read(self, pid: int, name: str, bytes_max: int = _READ_MAX_BYTES) -> bytes:
        """One of its files, up to `bytes_max`; empty when it is gone, or we may not read it."""
        try:
            with (self.root / str(pid) / name).open("rb") as file:
                return file.read(bytes_max)
        except OSError as error:
            if error.errno in _NOTHING_TO_SEE:
                return b""
            raise

    def threads_of(self, pid: int) -> tuple[int, ...]:
        """The threads that represent it: itself, or the others if its first one has ended (a zombie without files)."""
        if self.started_at(pid):
            return (pid,)
        return tuple(thread for thread in self._threads(pid) if thread != pid)

    def own_pod(self) -> str:
        return self.owner_of(self._own_pid())

    def with_open(self, paths: Collection[str]) -> tuple[int, ...]:
        """The other processes that have one of these device files open, under any name. One whose files may not be read
        is skipped (without CAP_SYS_PTRACE those of other users), and so is a mere mapping. Raises OSError when there is
        no /proc, and when more than FDS_MAX files are open."""
        wanted = frozenset(paths)
        devices = frozenset(device for path in wanted if (device := _device(path)) is not None)
        left = FDS_MAX
        found = []
        own = self._own_pid()
        for pid in sorted(self.pids()):
            if pid == own:
                continue
            looked, holds = self._holds(pid, wanted, devices, left)
            if holds:
                found.append(pid)
            left -= looked
        return tuple(found)

    def with_mounted(self, names: Collection[str]) -> tuple[int, ...]:
        """The processes of pods that have a file of one of these names mounted (proc(5), `mountinfo`), even if it is
        gone by now. Raises OSError when there is no /proc, or a list of mounts is too long."""
        return tuple(pid for pid in sorted(self.pids()) if self.pod_of(pid) and self.has_mounted(pid, names))

    def has_mounted(self, pid: int, names: Collection[str], at: str = "") -> bool:
        """As in `with_mounted`, of one process, and `at` a place of this name if there is one. Raises OSError."""
        return any(self._has_mounted(pid, thread, names, at) for thread in self.threads_of(pid))

    def _has_mounted(self, pid: int, thread: int, names: Collection[str], at: str) -> bool:
        try:
            listed = self.read(pid, f"task/{thread}/mountinfo", _LONG_MAX_BYTES)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False  # it has just ended
            raise
        if len(listed) >= _LONG_MAX_BYTES:
            raise OSError(errno.EFBIG, f"process {pid} has more mounts than {_LONG_MAX_BYTES} bytes name")
        mounts = (line.split(" ", 5)[3:5] for line in listed.decode("utf-8", "replace").splitlines())
        found = (tuple(part.removesuffix("//deleted").rpartition("/")[2] for part in mount) for mount in mounts)
        return any(name in names and at in ("", *place) for name, *place in filter(None, found))

    def _holds(self, pid: int, paths: frozenset[str], devices: frozenset[int], limit: int) -> tuple[int, bool]:
        place = self.root / str(pid)
        looked, holds = _looked_through(place / "fd", paths, devices, limit)
        if looked:
            return looked, holds
        for thread in self.threads_of(pid):  # its first thread may have ended; the others share their files
            looked, holds = _looked_through(place / "task" / str(thread) / "fd", paths, devices, limit)
            if looked:
                break
        return looked, holds

    def _own_pid(self) -> int:
        """Our pid in this /proc; in another pid namespace os.getpid() would be wrong."""
        try:
            return int((self.root / "self").readlink().name)
        except (OSError, ValueError):
            return 0

    def _threads(self, pid: int) -> tuple[int, ...]:
        try:
            return tuple(sorted(int(path.name) for path in (self.root / str(pid) / "task").iterdir()))
        except OSError as error:
            if error.errno in _NOTHING_TO_SEE:
                return ()
            raise

    def _stat(self, pid: int, name: str) -> list[str]:
        """The fields of such a file from the third on: the name before them may hold spaces and brackets."""
        return self._text(pid, name).rpartition(")")[2].split()

    def _text(self, pid: int, name: str) -> str:
        return self.read(pid, name).decode("utf-8", "replace")


def _looked_through(folder: Path, paths: frozenset[str], devices: frozenset[int], limit: int) -> tuple[int, bool]:
    looked = 0
    try:
        with os.scandir(folder) as files:
            for file in files:
                if looked >= limit:
                    raise OSError(errno.EOVERFLOW, f"more than {FDS_MAX} files are open, too many to look at")
                looked += 1
                if _is_one_of(file.path, paths, devices):
                    return looked, True
    except OSError as error:
        if error.errno not in _NOTHING_TO_SEE:
            raise
    return looked, False


def _is_one_of(link: str, paths: frozenset[str], devices: frozenset[int]) -> bool:
    """Whether an open file is one of the devices, by name or number. Only what looks like a device: stat may hang."""
    try:
        target = os.readlink(link)  # noqa: PTH115 - many thousands of times
        if target in paths:
            return True
        if not devices or not (target.startswith("/dev/") or _DEVICE_NAME.fullmatch(target.rpartition("/")[2])):
            return False
        return _device(link) in devices
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False  # closed meanwhile, or longer than a device's name


def _device(path: str) -> int | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - likewise
    except OSError as error:
        if error.errno in SHORT:
            raise
        return None  # missing or unreadable: no device
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


_LOOK_S = 0.02
"""How often to check whether the program has ended while a child of it holds its output open."""
_READ_BYTES = 64 * 1024
_KILLED_S = 0.5
"""How long a killed program may take to end; normally far less."""


def communicate(
    command: Sequence[str | Path], said: bytes, environment: Mapping[str, str], timeout_s: float, *, bytes_max: int
) -> tuple[int, bytes]:
    """Run a program with `said` on stdin; returns its exit status and output. One that prints more than `bytes_max` is
    killed; its output is then longer than that. Raises OSError when it cannot be run, and TimeoutError."""
    until = time.monotonic() + max(timeout_s, _LOOK_S)
    with killed_at_end(
        subprocess.Popen(  # noqa: S603 - a program that an operator configured
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
    ) as process:
        _say(process, said)
        answer = _hear(process, until, bytes_max)
        if len(answer) > bytes_max:
            process.kill()
        return process.wait(max(until - time.monotonic(), _LOOK_S)), answer


@contextlib.contextmanager
def killed_at_end(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Kill it if it still runs at the end. One that waits in the kernel for a driver ends later: it is not waited for.
    Raises TimeoutError for a wait inside that took too long."""
    try:
        yield process
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        if process.stdout is not None:
            process.stdout.close()
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)


def _say(process: "subprocess.Popen[bytes]", said: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it may not read its input
        process.stdin.write(said)


def _hear(process: "subprocess.Popen[bytes]", until: float, bytes_max: int) -> bytes:
    """Its output until it ends, or one byte too many. Raises TimeoutError."""
    assert process.stdout is not None
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answer) <= bytes_max:
            has_ended = process.poll() is not None
            if selector.select(0 if has_ended else _LOOK_S):
                part = os.read(process.stdout.fileno(), min(_READ_BYTES, bytes_max + 1 - len(answer)))
                if not part:
                    break
                answer += part
            elif has_ended:
                break
            if time.monotonic() > until:
                raise TimeoutError
    return bytes(answer)
