"""Ownership marks: which instances on a node's GPUs are ours, for an agent that lost its journal together with the
ledger. A mark is a place. It exists from before an instance is created until it is gone. Nothing is synced: an instance
does not survive what a mark would not. None is added where an instance exists: it would claim a foreign one."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from msgspec.structs import astuple

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import DeviceErrorKind, GpuRead, OwnershipMark, Result
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, GpuInstruction, SetComputeMode
from sluice_node_agent.device.opened_files import opened
from sluice_node_agent.device.port import DeviceError, GpuBackend, InsufficientResourcesError
from sluice_node_agent.shell.runner.device_calls import on_device

LINES_MAX = 4096
"""Lines before the file is replaced by one with the current marks: some 200 KiB."""
_MARKED, _UNMARKED, _DOUBTED, _SETTLED = b"+", b"-", b"?", b"!"
_HOLDS = {
    _MARKED: (_MARKED, True),
    _UNMARKED: (_MARKED, False),
    _DOUBTED: (_DOUBTED, True),
    _SETTLED: (_DOUBTED, False),
}
"""Which places a line is about, marks or doubts, and whether it adds one."""
_WHOLE = b"whole"
_PARTS = 4
_MODE = 0o700
_UNCLEAR = {DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN}
"""After these errors it is unknown whether a GPU's mode was set."""
_NOT_OURS = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}


class _Places:
    """The places of one node and boot, and their file, which no other process writes. Thread-safe; raises OSError."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._lock = Lock()
        self._lines = 0
        self._held: dict[bytes, set[OwnershipMark]] = {_MARKED: set(), _DOUBTED: set()}
        self.is_whole = False
        """Whether every instance of ours has a mark or a doubt."""
        self.was_missing = not path.exists()
        if not self.was_missing:
            self._read()
        self._begin_anew()

    def of(self, kind: bytes) -> tuple[OwnershipMark, ...]:
        """All marks, or places where an instance of ours may be without one; by GPU and place."""
        with self._lock:
            return tuple(sorted(self._held[kind], key=astuple))

    def begin_whole(self) -> None:
        """Every instance of ours has a mark, and every later one will."""
        with self._lock:
            self.is_whole = True
            self._begin_anew()

    def change(self, sign: bytes, mark: OwnershipMark) -> bool:
        """Add or remove a mark or doubt, unless that is done: then False. After an OSError nothing has changed."""
        kind, adds = _HOLDS[sign]
        with self._lock:
            if (mark in self._held[kind]) == adds:
                return False
            self._add(sign, mark)
            self._apply(sign, mark)
            return True

    def _apply(self, sign: bytes, mark: OwnershipMark) -> None:
        kind, adds = _HOLDS[sign]
        (self._held[kind].add if adds else self._held[kind].discard)(mark)

    def _add(self, sign: bytes, mark: OwnershipMark) -> None:
        if self._lines >= LINES_MAX or not self._path.exists():
            self._begin_anew()
        line = _line(sign, mark)
        with opened(self._path, os.O_WRONLY | os.O_APPEND) as descriptor:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):  # the disk is full
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._lines += 1

    def _begin_anew(self) -> None:
        """Replace the file by a short one, without what a killed writer left half written."""
        if not self._path.parent.exists():  # its disk was emptied
            self._path.parent.mkdir(mode=_MODE, parents=True)
        draft = self._path.with_name(f"{self._path.name}.new")
        head = [f"{self._boot_id}\n".encode(), *([_WHOLE + b"\n"] if self.is_whole else [])]
        lines = [_line(kind, mark) for kind, held in self._held.items() for mark in sorted(held, key=astuple)]
        draft.touch(mode=0o600)
        draft.write_bytes(b"".join(head + lines))
        draft.replace(self._path)
        self._lines = len(lines)

    def _read(self) -> None:
        """Take over the lines of this boot; of another boot no mark exists. An invalid line is none."""
        first, *lines = self._path.read_bytes().split(b"\n")
        if first != self._boot_id.encode():
            self.is_whole = bool(first)
            return
        for line in lines[:-1]:  # after the last line end is a killed writer's rest
            sign, _, place = line.partition(b" ")
            parts = place.split(b" ")
            if line == _WHOLE:
                self.is_whole = True
            elif sign in _HOLDS and len(parts) == _PARTS - 1 and parts[1].isdigit() and parts[2].isdigit():
                gpu = GpuUuid(parts[0].decode(errors="replace"))
                self._apply(sign, OwnershipMark(gpu, int(parts[1]), int(parts[2])))


def _line(sign: bytes, mark: OwnershipMark) -> bytes:
    return b"%b %b %d %d\n" % (sign, mark.gpu.encode(), mark.start, mark.size)


class OwnershipMarkError(DeviceError):
    """A mark cannot be written or removed: then nothing is created, because its owner would be unknown."""


class OwnershipMarks:
    """The marks of one node. Calls block briefly; those about one GPU never overlap (see `runner.executors`)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        self._places = _Places(directory / "places", boot_id)

    def found(self, gpus: Iterable[GpuReport], *, all_told: bool = True) -> tuple[OwnershipMark, ...]:
        """The marks with an instance, or maybe one; others are removed. Raises OSError. `gpus` are all of the node if
        `all_told`: without a file and an instance on any of them, every later one has a mark."""
        gpus = tuple(gpus)
        some = any(gpu.lost or (gpu.instances and not gpu.fixed_layout) for gpu in gpus)
        if self._places.was_missing and gpus and all_told and not some:
            self._places.begin_whole()
        for gpu in gpus:
            self._compare(gpu)
        return self._places.of(_MARKED)

    def unmarked(self) -> tuple[OwnershipMark, ...] | None:
        """Places where an instance of ours may be without a mark; None: anywhere."""
        return self._places.of(_DOUBTED) if self._places.is_whole else None

    def carry_out(self, backend: GpuBackend, order: GpuInstruction) -> Result:
        """Carry out one step on a GPU, adding its mark before or removing it after. Raises DeviceError."""
        mark = _of(order)
        begins = isinstance(order, CreateGpuInstance) or (isinstance(order, SetComputeMode) and order.exclusive_process)
        is_new = False
        try:
            if isinstance(order, CreateGpuInstance):
                _refuse_taken(backend, order)
            if mark is not None and begins:
                is_new = self._places.change(_MARKED, mark)
            result = on_device(backend, order)
            if mark is not None and not begins:
                self._places.change(_UNMARKED, mark)
        except OSError as error:
            raise OwnershipMarkError(f"the mark of a place on {order.gpu} cannot be kept: {error}") from error
        except DeviceError as error:
            if mark is not None and _ends_mark(order, error.kind, begins=begins, is_new=is_new):
                with suppress(OSError):  # the refusal matters; else the next reading of the GPU removes the mark
                    if error.kind in _UNCLEAR:
                        self._places.change(_DOUBTED, mark)
                    self._places.change(_UNMARKED, mark)
            raise
        with suppress(OSError):  # likewise
            if mark is not None:
                self._places.change(_SETTLED, mark)
            if isinstance(result, GpuRead):
                self._compare(result.report)
        return result

    def _compare(self, gpu: GpuReport) -> None:
        """No creation is in flight on this GPU: remove marks of places without an instance."""
        if gpu.lost:
            return
        there = {(instance.start, instance.size) for instance in gpu.instances}
        for mark in (*self._places.of(_MARKED), *self._places.of(_DOUBTED)):
            if mark.gpu == gpu.uuid and mark.size and (mark.start, mark.size) not in there:
                self._places.change(_UNMARKED, mark)
                self._places.change(_SETTLED, mark)


def _refuse_taken(backend: GpuBackend, order: CreateGpuInstance) -> None:
    """Raises InsufficientResourcesError if such an instance exists, as the driver would: a later unclear error, or the
    agent's death, would give an administrator's instance our mark."""
    there = backend.instance_at(order.gpu, order.profile_id, order.start, order.size)
    if there is not None:
        raise InsufficientResourcesError(f"{order.gpu}: GPU instance {there} is at {order.start}:{order.size} already")


def _ends_mark(order: GpuInstruction, refusal: DeviceErrorKind, *, begins: bool, is_new: bool) -> bool:
    """Whether nothing of ours exists there after a refused step. After a refused creation nothing does, and a mark
    would claim a foreign instance; unless the reason leaves it open. One with a mark before (not `is_new`) is ours."""
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
