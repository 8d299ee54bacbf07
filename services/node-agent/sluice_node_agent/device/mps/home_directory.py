"""The directories of one home of shares: only its trust domain can reach the daemon, and they are removed as a whole.
`home.json` names that domain before a daemon starts. `pipe` holds the daemon's sockets, `log` its logs. `shm`, a mount,
is its shared memory where `deploy/docker/mps-on-host` starts it."""

import errno
import os
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.ids import GpuUuid, HomeId
from sluice.contracts.reasons import shorten
from sluice_node_agent.device import mounts
from sluice_node_agent.device.opened_files import sync_directory
from sluice_node_agent.device.processes import SHORT, Processes

SOCKET_PATH_BYTES_MAX = 107
"""The longest path of a unix socket: `sun_path` holds 108 with the end mark (unix(7))."""
LONGEST_SOCKET = "pipe/control_privileged"
"""The daemon's socket with the longest name (seen with releases 535 and 550)."""
_ACL = "system.posix_acl_access"
_ECHO = re.compile(
    r"\] (?:UI closed|NEW UI|Accepting connection\.\.\.|Cmd:.*|Removed Shm file at .*"
    r"|Server \d+ not found!?|Unknown command .*|[A-Z]+|\d[\d.]*[GM]?)$"
)
"""Lines of the control log that only echo commands to the daemon and their answers."""
_HOME_JSON_MAX_BYTES = 64 * 1024


class MpsError(Exception):
    """An MPS operation failed. Its text is one sentence."""


@contextmanager
def as_mps_error() -> Iterator[None]:
    """Raise failures of the machine as an MpsError: a daemon that could not be read is not gone."""
    try:
        yield
    except OSError as error:
        raise MpsError(f"the processes or files of this node cannot be looked at: {_reason(error)}") from error


class HomeOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a home, as in home.json."""

    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    agent_pod: str = ""
    """UID of the pod of the agent that started its daemon, empty without one: the daemon is in its cgroup."""


class HomeDirectory:
    """The directories of one home. Every method raises MpsError; none but `read` raises OSError."""

    def __init__(self, root: Path, home: HomeId) -> None:
        """Name them; nothing is touched. Raises MpsError when `home` is no plain name."""
        if not home or home.startswith(".") or "/" in home:
            raise MpsError(f"home {home!r} is no home's name: it must be a plain file name")
        self._root = root
        self.home = home
        self.path = root / home
        self.pipe = self.path / "pipe"
        self.log = self.path / "log"
        self._owner_file = self.path / "home.json"

    def read(self) -> HomeOwner | None:
        """Its owner, or None. Raises MpsError for what is no home, OSError when no descriptor or memory is left."""
        try:
            with self._owner_file.open("rb") as file:
                return msgspec.json.decode(file.read(_HOME_JSON_MAX_BYTES), type=HomeOwner)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, *NOT_READABLE) as error:
            if isinstance(error, OSError) and error.errno in SHORT:
                raise
            why = shorten(str(error), 300)
            raise MpsError(f"home {self.home}: {self._owner_file} cannot be read: {why}") from error

    def prepare(self, owner: HomeOwner) -> None:
        """Create the directories, empty and with their modes, and save their owner. No process may be running in it."""
        self.check_length()
        try:
            self._prepare_root()
            self.path.mkdir(exist_ok=True)
            self.path.chmod(0o711)
            self._write(owner)
            self.log.mkdir(mode=0o700, exist_ok=True)
            self.log.chmod(0o700)
            if self.pipe.exists():
                shutil.rmtree(self.pipe)
            self.pipe.mkdir(mode=0o700)
            _admit(self.pipe, owner.uid)
        except OSError as error:
            raise MpsError(f"home {self.home}: its directories cannot be made: {_reason(error)}") from error

    def check_length(self) -> None:
        longest = os.fsencode(self.path / LONGEST_SOCKET)
        if len(longest) > SOCKET_PATH_BYTES_MAX:
            excess = len(longest) - SOCKET_PATH_BYTES_MAX
            raise MpsError(
                f"home {self.home}: the socket path {longest.decode(errors='replace')} has {len(longest)} bytes and "
                f"may have {SOCKET_PATH_BYTES_MAX}; set mps_dir to a path that is {excess} bytes shorter"
            )

    def why_closed_to(self, uid: int) -> str:
        """Why a server of `uid` could not reach the pipe directory from the root; empty when it could."""
        for directory in (*reversed(self.path.absolute().parents), self.path):
            try:
                status = directory.stat()
            except OSError:
                continue
            mine = status.st_uid == uid and status.st_mode & 0o100
            if uid != 0 and not mine and not status.st_mode & 0o001:
                return f"uid {uid} cannot pass {directory} (mode {status.st_mode & 0o777:o}); it needs chmod o+x"
        return ""

    def last_line(self, name: str) -> str:
        """The last line of one of its logs that is not an echo; empty when there is none."""
        try:
            with (self.log / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                lines = file.read(4096).decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip() and not _ECHO.search(line)), "")

    def remove(self) -> None:
        """Remove all of it, the owner last: a half-removed home is still known. Succeeds when it is gone."""
        try:
            if not self.path.exists():
                return
            for path in self.path.iterdir():
                if path == self._owner_file:
                    continue
                if path.is_dir() and not path.is_symlink():
                    mounts.detach_all(path)
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self._owner_file.unlink(missing_ok=True)
            self.path.rmdir()
        except OSError as error:
            raise MpsError(f"home {self.home}: {self.path} cannot be removed: {_reason(error)}") from error

    def _prepare_root(self) -> None:
        """The root, open for passing and closed for writing; one that others can write to is left as it is."""
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o711)
        status = self._root.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o002:
            raise MpsError(
                f"home {self.home}: the MPS directory {self._root} belongs to uid {status.st_uid} with mode "
                f"{status.st_mode & 0o7777:o}; it must be ours (uid {os.geteuid()}) and not writable by others"
            )
        self._root.chmod(status.st_mode & 0o755 | 0o111)

    def _write(self, owner: HomeOwner) -> None:
        draft = self._owner_file.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(owner) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._owner_file)
        sync_directory(self.path)
        sync_directory(self._root)


def _admit(directory: Path, uid: int) -> None:
    """Let one more user pass a directory, by a POSIX access list: it stays ours. The daemon's sockets are open to all,
    so the directory is the gate. Layout: linux/posix_acl_xattr.h, version 2, then tag, permissions, id per entry."""
    if uid == os.geteuid():
        return
    no_id = 0xFFFFFFFF
    entries = ((0x01, 7, no_id), (0x02, 5, uid), (0x04, 0, no_id), (0x10, 5, no_id), (0x20, 0, no_id))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(directory, _ACL, value)
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.EINVAL}:
            raise
        text = "its file system has no access lists (ACL); set mps_dir to one that has, such as ext4, xfs or tmpfs"
        raise OSError(error.errno, text, str(directory)) from error


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


_FILE = "terminated.json"
_MAX_BYTES = 64 * 1024
"""A server has at most some dozens of clients, and ended ones are dropped."""


class TerminatedClients:
    """Disconnected clients of one home, by process id and start time. Every method raises MpsError."""

    def __init__(self, home: Path, processes: Processes) -> None:
        self._path = home / _FILE
        self._processes = processes
        try:
            with self._path.open("rb") as file:
                self._told = msgspec.json.decode(file.read(_MAX_BYTES), type=dict[int, int])
        except FileNotFoundError:
            self._told = {}
        except (OSError, *NOT_READABLE) as error:
            why = shorten(str(error), 300)
            raise MpsError(f"{self._path} cannot be read: {why}; remove it once its clients have ended") from error

    def add(self, pid: int) -> bool:
        """Note a living process that is not listed; False when it is, or has ended."""
        started_at = self._processes.started_at(pid)
        if not started_at or self._told.get(pid) == started_at:
            return False
        self._told[pid] = started_at
        self._write()
        return True

    def forget(self, pid: int) -> None:
        """The daemon reported that it did not take this one: it may be asked again."""
        del self._told[pid]
        self._write()

    def _write(self) -> None:
        left = {pid: since for pid, since in self._told.items() if self._processes.started_at(pid) == since}
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(left))
            draft.replace(self._path)
        except OSError as error:
            raise MpsError(f"{self._path} cannot be written: {error.strerror}") from error
        self._told = left
