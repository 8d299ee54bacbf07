"""Where results of slow steps are kept: outside the tree, so that each checkout finds them."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_LOOK_AGAIN_S = 0.2


class CacheError(RuntimeError):
    """The cache cannot be used: says why, and what to do."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """$SLUICE_CLUSTER_CACHE, else $XDG_CACHE_HOME/sluice-cluster, else ~/.cache/sluice-cluster. Raises CacheError."""
    named = environ.get("SLUICE_CLUSTER_CACHE", "")
    if named:
        if not Path(named).is_absolute():
            raise CacheError(f"SLUICE_CLUSTER_CACHE is {named!r}: give an absolute path")
        return Path(named)
    shared = environ.get("XDG_CACHE_HOME", "")
    # The specification of these folders says that a relative path is ignored.
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache") / "sluice-cluster"


@contextmanager
def locked(file: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the lock of a file, which the kernel gives back when the process ends. Raises CacheError after `wait_s`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with file.open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CacheError(
                        f"another build has held {file} for {wait_s:.0f} s: wait for it or end it"
                    ) from None
                time.sleep(_LOOK_AGAIN_S)
        yield


def digest_of(parts: Iterable[bytes | str]) -> str:
    """SHA-256 in hex of parts, each with its length, so that no two lists give the same."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 in hex of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
