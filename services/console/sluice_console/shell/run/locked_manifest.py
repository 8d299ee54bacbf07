"""
The ask of one run: a manifest in the folder of a running system that counts for as long as it is locked.

Written and locked under a hidden name first, so that nobody ever sees it without its lock.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.manifests import LEASED
from sluice_console.shell.run.errors import RunError


@dataclass(frozen=True, slots=True)
class LockedManifest:
    """A manifest, and the descriptor whose lock makes it count."""

    file: Path
    descriptor: int

    def give_up(self) -> None:
        """Nobody asks any more. Done twice, or by another process too, it is the same."""
        with contextlib.suppress(FileNotFoundError):
            self.file.unlink()
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def take(folder: Path, name: str, text: str) -> LockedManifest:
    """Ask, from now on. Raises RunError when the folder cannot be written."""
    _remove_stale(folder)
    hidden = folder / f".{name}.tmp"
    file = folder / f"{name}{LEASED}"
    try:
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, text.encode())
            hidden.rename(file)
        except BaseException:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror or error}): requests of this machine are read there, by the "
            "pod-watcher; run as the user of `sluice up`, or name another system by --server and --pods"
        ) from error
    return LockedManifest(file, descriptor)


def _remove_stale(folder: Path) -> None:
    """Take away what killed runs left behind: it counts for nothing, and only lies in the way of eyes."""
    for file in folder.glob(f"*{LEASED}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()
            finally:
                os.close(descriptor)
