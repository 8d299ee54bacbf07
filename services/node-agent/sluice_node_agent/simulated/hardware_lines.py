# ruff: noqa: PTH105, PTH123 - as in `mps_program`
"""
How the simulated hardware of a node lies in its file: a line for each state, of which the last whole one holds.

To add a line takes one write; to replace the file for each change takes fifty times as long where journals are synced
on the same disk. Whoever looks needs no lock: a line without an end is not there yet. A writer that is killed half way
leaves such a one, and the next writer takes it away. When the file has grown too long, one with its last line alone
takes its name.

It needs only the standard library and knows nothing of what a line says: the MPS stand-in, which writes the same file,
is started too often to import more.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

BYTES_MAX = 1024 * 1024
"""Of a file before it is begun anew: some 300 changes of a node with eight GPUs."""
_TAIL_BYTES = 16 * 1024
"""The first look for the last line: twice what a full node with eight GPUs takes."""


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Keep every other writer away. Raises OSError."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def last_line(path: str) -> bytes:
    """The last whole line; empty where there is none. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _last(descriptor, os.fstat(descriptor).st_size)[0]
    finally:
        os.close(descriptor)


def add_line(path: str, line: bytes) -> None:
    """Have a line hold from now on, whole or not at all; only under the lock. Raises OSError."""
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
    """Begin the file, or begin it anew, with one line; only under the lock. Raises OSError."""
    draft = f"{path}.new"
    with open(draft, "wb") as file:
        file.write(line + b"\n")
    os.replace(draft, path)


def _last(descriptor: int, size: int) -> tuple[bytes, int]:
    """The last whole line of so many bytes, and where it ends: behind that is what a killed writer has left."""
    looked = 0
    while looked < size:
        looked = min(size, max(_TAIL_BYTES, 4 * looked))
        tail = os.pread(descriptor, looked, size - looked)
        end = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (before >= 0 or looked == size):
            return tail[before + 1 : end], size - looked + end + 1
    return b"", 0
