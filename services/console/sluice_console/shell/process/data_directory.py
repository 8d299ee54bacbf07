"""The data directory of one `sluice up`: its lock, its folder of MPS sockets, and the program that ends its daemons."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from sluice_console.shell.errors import CommandError

LOCK_WITHIN_S = 2.0
"""Seconds to wait for the data directory of a system that was just killed."""
MPS_PATH_ROOM = 107 - len("/mps//0123456789-999-999-h99999/pipe/control_privileged")
"""Bytes left for data directory and node name in the path of a daemon's socket (unix(7): at most 107 bytes)."""
_POWER_OFF = Path(__file__).with_name("power_off.py")


class NotStartedError(CommandError):
    """The system cannot be started as requested. One sentence for the user."""


def made_data_directory(asked: Path) -> Path:
    """The full path of a data directory, created if missing. Raises NotStartedError."""
    try:
        path = asked.resolve()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError is a loop of links, before Python 3.13
        why = error.strerror if isinstance(error, OSError) else error
        raise NotStartedError(f"--data {asked} cannot be made: {why}; name a folder that you may write to") from error
    return path


def temporary_directory(prefix: str) -> Path:
    """A new temporary one. Raises NotStartedError if none can be written."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise NotStartedError(
            f"no temporary folder can be made: {error.strerror}; let TMPDIR name a folder that you may write to"
        ) from error


def lock_data_directory(path: Path) -> IO[str]:
    """Lock a data directory by a file in it. Raises NotStartedError.

    After an `up` was killed it stays locked until its daemons have ended, which is waited for."""
    try:
        file = path.open("a+")
    except OSError as error:
        raise NotStartedError(
            f"the data directory {path.parent} cannot be used: {path.name} in it cannot be opened: {error.strerror}; "
            "name a folder that you may write to"
        ) from error
    deadline = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            file.close()
            raise NotStartedError(f"another `sluice up` already uses the data directory {path.parent}") from None
        return file


def short_mps_dir(data_dir: Path, nodes: tuple[str, ...]) -> str:
    """The folder of MPS sockets if the data directory's path is too long; else empty.

    The same at each start. Raises NotStartedError."""
    longest = max(len(os.fsencode(node)) for node in nodes)
    if len(os.fsencode(data_dir)) + longest <= MPS_PATH_ROOM:
        return ""
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:10]
    short = Path("/tmp") / f"sluice-mps-{os.getuid()}-{digest}"  # noqa: S108 - checked below whose it is
    try:
        short.mkdir(mode=0o711, exist_ok=True)
        mine = short.lstat().st_uid == os.getuid() and not short.is_symlink()
    except OSError as error:
        raise NotStartedError(f"{short} cannot be made for the sockets of MPS daemons: {error.strerror}") from error
    if not mine:
        raise NotStartedError(f"{short} belongs to another user; give a --data directory with a shorter name")
    return str(short)


def power_switch(data_dir: Path, mps_dir: str, lock: IO[str]) -> subprocess.Popen[bytes]:
    """The program that ends the simulated nodes' MPS daemons when this process closes its pipe or dies."""
    command = (sys.executable, "-I", "-S", str(_POWER_OFF), str(data_dir), *([mps_dir] if mps_dir else []))
    kept = (lock.fileno(),)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=kept)  # noqa: S603 - ours
