# ruff: noqa: PTH105, PTH110, PTH123 - as in `mps_program`
"""The file format of simulated hardware: a line per state; the last complete line is the current one. Replacing the
file for each change takes fifty times as long. Readers need no lock: a line without an end is not there yet, and the
next writer removes it. A file that has grown too long is replaced by one with its last line. Standard library only: the
MPS stand-in, which writes its processes here, starts too often to import more."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    looked = 0
    while looked < size:
        looked = min(size, max(_TAIL_BYTES, 4 * looked))
        tail = os.pread(descriptor, looked, size - looked)
        end = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (before >= 0 or looked == size):
            return tail[before + 1 : end], size - looked + end + 1
    return b"", 0


class ProcessEntries:
    """The hardware file of one node, for one MPS daemon; does nothing without a file."""

    def __init__(self, path: str, device: str) -> None:
        """`device` is the daemon's visible device: the UUID of a GPU or of a MIG device."""
        self._path = path
        self._device = device

    def has_device(self) -> bool:
        """Whether a server could have a context on the device; True without a hardware file."""
        if not self._path:
            return True
        try:
            return _gpu_of(json.loads(last_line(self._path)), self._device) is not None
        except (OSError, ValueError):
            return False

    def enter(self, pid: int, *, owner: str, name: str, kind: str) -> None:
        """A process is on the device from now on."""
        with self._changing() as hardware:
            gpu = _gpu_of(hardware, self._device)
            if gpu is not None:
                gpu["processes"] = [known for known in gpu["processes"] if known["pid"] != pid]
                gpu["processes"].append(
                    {"pid": pid, "owner": owner, "device": self._device, "name": name, "kind": kind, "real": True}
                    | {"started_at": _started_at(pid)}
                )

    def remove(self, pids: set[int]) -> None:
        """These processes are not on the device any more."""
        if not pids:
            return
        with self._changing() as hardware:
            for gpu in hardware["gpus"]:
                gpu["processes"] = [
                    known for known in gpu["processes"] if known["pid"] not in pids or known["device"] != self._device
                ]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The hardware, to be changed. A file that is gone (its node was removed) stays gone."""
        if not self._path or not os.path.exists(self._path):
            yield {"gpus": []}
            return
        with locked(self._path):
            hardware = json.loads(last_line(self._path))
            yield hardware
            add_line(self._path, json.dumps(hardware).encode())


def _gpu_of(hardware: dict[str, Any], device: str) -> dict[str, Any] | None:
    for gpu in hardware["gpus"]:
        uuids = {instance.get("uuid") for instance in gpu.get("instances", [])}
        if not gpu.get("lost") and device and (device == gpu["uuid"] or device in uuids):
            gpu.setdefault("processes", [])
            found: dict[str, Any] = gpu
            return found
    return None


def _started_at(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0
