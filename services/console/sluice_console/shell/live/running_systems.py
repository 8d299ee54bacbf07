"""
Find running systems: `up.json` in the data directory, and one small file per `sluice up` in a directory of this user.

A file whose process has ended is ignored.
"""

import contextlib
import fcntl
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice_console.shell.errors import CommandError

SERVER_VARIABLE = "SLUICE_NATS_URL"
OTHERS_SHOWN_MAX = 5
LOCK = "up.lock"
"""In the data directory; locked while its system runs."""


class NothingRunningError(CommandError):
    """No server was named, and no `sluice up` of this user runs."""

    exit_code = 3


class RunningSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One running `sluice up`: the content of `up.json`."""

    pid: int
    nats_url: str
    inventory_grpc: str
    data_dir: str
    pods_dir: str
    nodes: tuple[str, ...]
    started_at: str
    """UTC, ISO 8601."""
    used_by: str = ""
    """Of a system started by `sluice run`: the file that its users lock."""
    monitor: str = ""
    """Monitoring address of its broker, HOST:PORT."""
    simulated: bool = True
    """Whether its nodes are simulated; otherwise it has one, this machine."""


def this_node() -> str:
    """This machine's node name: its host name in lower case, as in Kubernetes."""
    return platform.node().lower() or "localhost"


def pointers_dir() -> Path:
    """Folder that lists this user's systems: the runtime directory, or one of ours in the temporary directory.

    `su` and `sudo -E` keep another user's runtime directory in the environment; that one is not used."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if runtime and Path(runtime).is_dir() and Path(runtime).stat().st_uid == os.getuid():
            return Path(runtime) / "sluice"
    return Path(tempfile.gettempdir()) / f"sluice-of-{os.getuid()}"


def announce(running: RunningSystem, *, to_user: bool = True) -> None:
    """Write `up.json` and the user's file. Each is complete at every moment. Raises CommandError."""
    try:
        _announce(running, to_user=to_user)
    except OSError as error:
        raise CommandError(
            f"{error.filename} cannot be written, by which other commands find this system: {error.strerror}; "
            "XDG_RUNTIME_DIR or TMPDIR must name a folder that you may write to"
        ) from error


def _announce(running: RunningSystem, *, to_user: bool) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(running), indent=2)
    if to_user:
        directory = pointers_dir()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid == os.getuid():  # another user's directory of our name is neither trusted nor used
            _write(directory / f"{running.pid}.json", encoded)
    _write(Path(running.data_dir) / "up.json", encoded)  # last: who waits for it finds the other


def retract(running: RunningSystem) -> None:
    """Undo `announce`; removes empty directories."""
    (Path(running.data_dir) / "up.json").unlink(missing_ok=True)
    pointer = pointers_dir() / f"{running.pid}.json"
    pointer.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        pointer.parent.rmdir()


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content + b"\n")
    temporary.replace(path)


def running_systems() -> Iterator[RunningSystem]:
    """Every running `sluice up` of this user, newest first."""
    try:
        directory = pointers_dir()
        trusted = directory.stat().st_uid == os.getuid()
        files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    except OSError:
        trusted, files = False, []
    for file in files if trusted else []:
        running = _read(file)
        if running is not None and _is_alive(running.pid) and _has_its_data(running):
            yield running


def find_running() -> RunningSystem:
    """The newest running `sluice up` of this user; if there are several, stderr says which.

    Raises NothingRunningError."""
    found = list(running_systems())
    if not found:
        raise NothingRunningError(
            "nothing is running: no `sluice up` of this user was found, and neither --server nor "
            f"{SERVER_VARIABLE} names a NATS server"
        )
    newest, *others = found
    if others:
        shown = ", ".join(_named(each) for each in others[:OTHERS_SHOWN_MAX])
        more = f" and {len(others) - OTHERS_SHOWN_MAX} more" if len(others) > OTHERS_SHOWN_MAX else ""
        sys.stderr.write(
            f"sluice: {len(found)} systems are running; this is the newest, {_named(newest)}. --server URL or "
            f"{SERVER_VARIABLE} names another: {shown}{more}\n"
        )
    return newest


def running_at(url: str) -> RunningSystem | None:
    """The running `sluice up` of this user with this NATS server."""
    return next((each for each in running_systems() if each.nats_url == url), None)


def _named(running: RunningSystem) -> str:
    return f"{running.nats_url} ({running.data_dir})"


def _read(file: Path) -> RunningSystem | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunningSystem)
    except (OSError, *NOT_READABLE):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _has_its_data(running: RunningSystem) -> bool:
    """Whether its data directory is locked: a process id may have been reused."""
    try:
        lock = os.open(Path(running.data_dir) / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # unknown
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def server_url(server: str | None) -> str:
    """The NATS server: from the option, the environment, or the running `sluice up`.

    One of ours is named as it names itself, for its password is found by that."""
    named = server or os.environ.get(SERVER_VARIABLE, "")
    same = named.removeprefix("nats://").rstrip("/").replace("localhost:", "127.0.0.1:")
    ours = running_at(f"nats://{same}") if named else find_running()
    return ours.nats_url if ours is not None else named
