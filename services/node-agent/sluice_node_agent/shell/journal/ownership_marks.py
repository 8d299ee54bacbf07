"""
Ownership marks: which instances on a node's GPUs are ours, for an agent that lost its journal together with the ledger.
A mark is a place. It exists from before an instance is created until it is gone. Nothing is synced: an instance does
not survive what a mark would not. None is added where an instance exists: it would claim a foreign one.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import DeviceErrorKind, GpuRead, OwnershipMark, Result
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, GpuInstruction, SetComputeMode
from sluice_node_agent.device.port import DeviceError, GpuBackend, InsufficientResourcesError
from sluice_node_agent.shell.runner.device_calls import on_device

LINES_MAX = 4096
"""Lines before the file is replaced by one with the current marks: some 200 KiB."""
_PUT, _TAKEN, _DOUBTED, _SETTLED = b"+", b"-", b"?", b"!"
_WHOLE = b"whole"
_PARTS = 4


@dataclass(slots=True)
class _Content:
    there: set[OwnershipMark] = field(default_factory=set)
    doubted: set[OwnershipMark] = field(default_factory=set)
    whole: bool = False


class OwnershipFile:
    """The marks of one node and boot, and their file, which no other process writes. Thread-safe."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._lock = Lock()
        self._lines = 0
        self._is, self.was_missing = _read(path, boot_id)
        self._begin_anew()

    def marks(self) -> list[OwnershipMark]:
        with self._lock:
            return _in_order(self._is.there)

    def doubts(self) -> list[OwnershipMark]:
        """Places where an instance of ours may be without a mark, by GPU and place."""
        with self._lock:
            return _in_order(self._is.doubted)

    @property
    def is_whole(self) -> bool:
        """Whether every instance of ours has a mark or a doubt."""
        return self._is.whole

    def begin_whole(self) -> None:
        """Every instance of ours has a mark, and every later one will. Raises OSError."""
        with self._lock:
            self._is.whole = True
            self._begin_anew()

    def put(self, mark: OwnershipMark) -> bool:
        """Add a mark. False if it exists already. Raises OSError; then it was not added."""
        return self._change(self._is.there, _PUT, mark, holds=True)

    def take_away(self, mark: OwnershipMark) -> None:
        """Remove a mark. Raises OSError; then it is still there."""
        self._change(self._is.there, _TAKEN, mark, holds=False)

    def doubt(self, mark: OwnershipMark) -> None:
        """An instance of ours may be here, but a mark would claim too much. Raises OSError."""
        self._change(self._is.doubted, _DOUBTED, mark, holds=True)

    def settle(self, mark: OwnershipMark) -> None:
        """The doubt is settled: there is a mark, or no instance. Raises OSError; then the doubt stays."""
        self._change(self._is.doubted, _SETTLED, mark, holds=False)

    def _change(self, marks: set[OwnershipMark], sign: bytes, mark: OwnershipMark, *, holds: bool) -> bool:
        with self._lock:
            if (mark in marks) == holds:
                return False
            self._add(sign, mark)
            (marks.add if holds else marks.discard)(mark)
            return True

    def _add(self, sign: bytes, mark: OwnershipMark) -> None:
        if self._lines >= LINES_MAX or not self._path.exists():
            self._begin_anew()
        line = _line(sign, mark)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):  # the disk is full
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)
        self._lines += 1

    def _begin_anew(self) -> None:
        """Replace the file by a short one, without what a killed writer left half written."""
        if not self._path.parent.exists():  # its disk was emptied
            self._path.parent.mkdir(mode=_MODE, parents=True)
        draft = self._path.with_name(f"{self._path.name}.new")
        head = [f"{self._boot_id}\n".encode(), *([_WHOLE + b"\n"] if self._is.whole else [])]
        lines = [_line(_PUT, mark) for mark in _in_order(self._is.there)]
        lines += [_line(_DOUBTED, mark) for mark in _in_order(self._is.doubted)]
        draft.touch(mode=0o600)
        draft.write_bytes(b"".join(head + lines))
        draft.replace(self._path)
        self._lines = len(lines)


def _in_order(marks: Iterable[OwnershipMark]) -> list[OwnershipMark]:
    return sorted(marks, key=lambda mark: (mark.gpu, mark.start, mark.size))


def _read(path: Path, boot_id: str) -> tuple[_Content, bool]:
    """A file's marks of this boot, and whether it was missing. An invalid line is none; of another boot none exists."""
    content = _Content()
    try:
        first, *lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return content, True
    if first != boot_id.encode():
        content.whole = bool(first)
        return content, False
    for line in lines[:-1]:  # after the last line end is a killed writer's rest
        sign, mark = _parsed(line)
        if line == _WHOLE:
            content.whole = True
        elif mark is not None and sign in {_PUT, _TAKEN}:
            (content.there.add if sign == _PUT else content.there.discard)(mark)
        elif mark is not None and sign in {_DOUBTED, _SETTLED}:
            (content.doubted.add if sign == _DOUBTED else content.doubted.discard)(mark)
    return content, False


def _line(sign: bytes, mark: OwnershipMark) -> bytes:
    return b"%b %b %d %d\n" % (sign, mark.gpu.encode(), mark.start, mark.size)


def _parsed(line: bytes) -> tuple[bytes, OwnershipMark | None]:
    parts = line.split(b" ")
    if len(parts) != _PARTS or not (parts[2].isdigit() and parts[3].isdigit()):
        return b"", None
    return parts[0], OwnershipMark(GpuUuid(parts[1].decode(errors="replace")), int(parts[2]), int(parts[3]))


_MODE = 0o700
_UNCLEAR = {DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN}
"""After these errors it is unknown whether a GPU's mode was set."""
_NOT_OURS = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}


class OwnershipMarkError(DeviceError):
    """A mark cannot be written or removed: then nothing is created, because its owner would be unknown."""


class OwnershipMarks:
    """The marks of one node. Calls block briefly; those about one GPU never overlap (see `runner.executors`)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        self._file = OwnershipFile(directory / "places", boot_id)

    def found(self, gpus: Iterable[GpuReport], *, all_told: bool = True) -> tuple[OwnershipMark, ...]:
        """
        The marks with an instance, or maybe one; others are removed. Raises OSError. `gpus` are all of the node if
        `all_told`: without a file and an instance on any of them, every later one has a mark.
        """
        gpus = tuple(gpus)
        is_empty = (
            bool(gpus) and all_told and not any(gpu.lost or (gpu.instances and not gpu.fixed_layout) for gpu in gpus)
        )
        if self._file.was_missing and is_empty:
            self._file.begin_whole()
        for gpu in gpus:
            self._compare(gpu)
        return tuple(self._file.marks())

    def unmarked(self) -> tuple[OwnershipMark, ...] | None:
        """Places where an instance of ours may be without a mark; None: anywhere."""
        return tuple(self._file.doubts()) if self._file.is_whole else None

    def carry_out(self, backend: GpuBackend, order: GpuInstruction) -> Result:
        """Carry out one step on a GPU, adding its mark before or removing it after. Raises DeviceError."""
        mark = _of(order)
        begins = isinstance(order, CreateGpuInstance) or (isinstance(order, SetComputeMode) and order.exclusive_process)
        is_new = False
        try:
            if isinstance(order, CreateGpuInstance):
                _refuse_taken(backend, order)
            if mark is not None and begins:
                is_new = self._file.put(mark)
            result = on_device(backend, order)
            if mark is not None and not begins:
                self._file.take_away(mark)
        except OSError as error:
            raise OwnershipMarkError(f"the mark of a place on {order.gpu} cannot be kept: {error}") from error
        except DeviceError as error:
            if mark is not None and _ends_mark(order, error.kind, begins=begins, is_new=is_new):
                self._remove_if_possible(mark, doubted=error.kind in _UNCLEAR)
            raise
        self._tidy_if_possible(mark, result)
        return result

    def _compare(self, gpu: GpuReport) -> None:
        """No creation is in flight on this GPU: remove marks of places without an instance."""
        if gpu.lost:
            return
        there = {(instance.start, instance.size) for instance in gpu.instances}
        for mark in (*self._file.marks(), *self._file.doubts()):
            if mark.gpu == gpu.uuid and mark.size and (mark.start, mark.size) not in there:
                self._file.take_away(mark)
                self._file.settle(mark)

    def _tidy_if_possible(self, mark: OwnershipMark | None, result: Result) -> None:
        """The step's own result matters to the caller; if this fails, the next reading of the GPU does it."""
        try:
            if mark is not None:
                self._file.settle(mark)
            if isinstance(result, GpuRead):
                self._compare(result.report)
        except OSError:
            return

    def _remove_if_possible(self, mark: OwnershipMark, *, doubted: bool) -> None:
        """The refusal matters to the caller; if this fails, the next reading of the GPU removes the mark."""
        try:
            if doubted:
                self._file.doubt(mark)
            self._file.take_away(mark)
        except OSError:
            return


def _refuse_taken(backend: GpuBackend, order: CreateGpuInstance) -> None:
    """
    Raises InsufficientResourcesError if such an instance exists, as the driver would: a later unclear error, or the
    agent's death, would give an administrator's instance our mark.
    """
    there = backend.instance_at(order.gpu, order.profile_id, order.start, order.size)
    if there is not None:
        raise InsufficientResourcesError(f"{order.gpu}: GPU instance {there} is at {order.start}:{order.size} already")


def _ends_mark(order: GpuInstruction, refusal: DeviceErrorKind, *, begins: bool, is_new: bool) -> bool:
    """
    Whether nothing of ours exists there after a refused step. After a refused creation nothing does, and a mark would
    claim a foreign instance; unless the reason leaves it open. One with a mark before (not `is_new`) is ours.
    """
    if not begins:
        return refusal in _NOT_OURS
    return is_new and (isinstance(order, CreateGpuInstance) or refusal not in _UNCLEAR)


def _of(order: GpuInstruction) -> OwnershipMark | None:
    match order:
        case CreateGpuInstance(gpu=gpu, start=start, size=size) | DestroyGpuInstance(gpu=gpu, start=start, size=size):
            return OwnershipMark(gpu, start, size)
        case SetComputeMode(gpu=gpu):
            return OwnershipMark(gpu, 0, 0)
        case _:
            return None
