# ruff: noqa: PTH105, PTH123 - as in `mps_program`
"""
The file format of simulated hardware: a line per state; the last complete line is the current one.

Appending a line takes one write; replacing the file for each change takes fifty times as long where journals are synced
on the same disk. Readers need no lock: a line without an end is not there yet. A killed writer may leave one, and the
next writer removes it. A file that has grown too long is replaced by one with its last line.

Standard library only: the MPS stand-in, which writes the same file, starts too often to import more.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

BYTES_MAX = 1024 * 1024
"""The file's size before it is replaced: some 300 changes of a node with eight GPUs."""
_TAIL_BYTES = 16 * 1024
"""The first read for the last line: twice what a full node with eight GPUs takes."""


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Lock out other writers. Raises OSError."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def last_line(path: str) -> bytes:
    """The last complete line; empty if there is none. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _last(descriptor, os.fstat(descriptor).st_size)[0]
    finally:
        os.close(descriptor)


def add_line(path: str, line: bytes) -> None:
    """Append a line, atomically; only under the lock. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        _, whole = _last(descriptor, size)
        if whole + len(line) >= BYTES_MAX:
            begin(path, line)
            return
        if whole < size:
            os.ftruncate(descriptor, whole)
        data = line + b"\n"
        if os.pwrite(descriptor, data, whole) < len(data):  # the disk is full
            os.ftruncate(descriptor, whole)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def begin(path: str, line: bytes) -> None:
    """Create or replace the file, with one line; only under the lock. Raises OSError."""
    draft = f"{path}.new"
    with open(draft, "wb") as file:
        file.write(line + b"\n")
    os.replace(draft, path)


def _last(descriptor: int, size: int) -> tuple[bytes, int]:
    """The last complete line within `size` bytes, and where it ends: what follows is a killed writer's."""
    looked = 0
    while looked < size:
        looked = min(size, max(_TAIL_BYTES, 4 * looked))
        tail = os.pread(descriptor, looked, size - looked)
        end = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (before >= 0 or looked == size):
            return tail[before + 1 : end], size - looked + end + 1
    return b"", 0
