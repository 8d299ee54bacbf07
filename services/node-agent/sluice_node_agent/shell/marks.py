"""
Marks: where instances on a node's GPUs are ours, for an agent that has lost its journal while the ledger is lost, too.

An empty file per place, named after it and the boot. It is there from before an instance is made until it is gone, and
says nothing of who it was made for. Nothing is synced: an instance does not survive what a mark would not survive. A
mark must not stay where nothing is, because what is made there later is somebody else's.
"""

from collections.abc import Iterable
from pathlib import Path

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import DeviceErrorKind, GpuRead, Mark, Result
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, GpuInstruction, SetComputeMode
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.shell.steps import on_device

_MODE = 0o700
_UNCLEAR = {DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN}
"""After these nobody knows whether the step was taken."""
_NOT_OURS = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}
_PARTS = 4


class MarkError(DeviceError):
    """A mark cannot be written or removed: then nothing is made either, because nobody could tell whose it is."""


class Marks:
    """The marks of one node. Calls block briefly; those about one GPU never meet (see `hands`)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        """Find what is there; what is of another boot is removed. Raises OSError."""
        self._directory = directory
        self._boot_id = boot_id
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        self._there: set[Mark] = set()
        for path in directory.iterdir():
            mark = self._mark(path.name)
            if mark is None:
                path.unlink(missing_ok=True)
            else:
                self._there.add(mark)

    def found(self, gpus: Iterable[GpuReport]) -> tuple[Mark, ...]:
        """Those behind which something is, or may be; the others are removed. Raises OSError."""
        for gpu in gpus:
            self._compare(gpu)
        return tuple(sorted(self._there, key=lambda mark: (mark.gpu, mark.start, mark.size)))

    def carry_out(self, backend: GpuBackend, order: GpuInstruction) -> Result:
        """Take one step on a GPU, with its mark before it or gone after it. Raises DeviceError."""
        mark = _of(order)
        begins = isinstance(order, CreateGpuInstance) or (isinstance(order, SetComputeMode) and order.exclusive_process)
        try:
            if mark is not None and begins:
                self._add(mark)
            result = on_device(backend, order)
            if mark is not None and not begins:
                self._remove(mark)
            if isinstance(result, GpuRead):
                self._compare(result.report)
        except OSError as error:
            raise MarkError(f"the mark of a place on {order.gpu} cannot be kept: {error}") from error
        except DeviceError as error:
            if mark is not None and error.kind in (_NOT_OURS if not begins else set(DeviceErrorKind) - _UNCLEAR):
                self._remove_if_possible(mark)
            raise
        return result

    # -- inside ---------------------------------------------------------------------------------------------------

    def _compare(self, gpu: GpuReport) -> None:
        """Nobody makes anything on this GPU now: a mark of a place with no instance speaks of nothing."""
        if gpu.lost:
            return
        there = {(instance.start, instance.size) for instance in gpu.instances}
        for mark in [mark for mark in self._there if mark.gpu == gpu.uuid and mark.size]:
            if (mark.start, mark.size) not in there:
                self._remove(mark)

    def _add(self, mark: Mark) -> None:
        if mark not in self._there:
            self._path(mark).touch(mode=0o600)
            self._there.add(mark)

    def _remove(self, mark: Mark) -> None:
        if mark in self._there:
            self._path(mark).unlink(missing_ok=True)
            self._there.discard(mark)

    def _remove_if_possible(self, mark: Mark) -> None:
        """The refusal is what the caller must hear; the next reading of the GPU removes the mark otherwise."""
        try:
            self._remove(mark)
        except OSError:
            return

    def _path(self, mark: Mark) -> Path:
        return self._directory / f"{mark.gpu}_{mark.start}_{mark.size}_{self._boot_id}"

    def _mark(self, name: str) -> Mark | None:
        """What a file's name says; None when it is of another boot, or no name of a mark."""
        parts = name.split("_", _PARTS - 1)
        if len(parts) != _PARTS or parts[3] != self._boot_id or not (parts[1].isdecimal() and parts[2].isdecimal()):
            return None
        return Mark(GpuUuid(parts[0]), int(parts[1]), int(parts[2]))


def _of(order: GpuInstruction) -> Mark | None:
    """The mark that a step is about, if it makes or ends something."""
    match order:
        case CreateGpuInstance(gpu=gpu, start=start, size=size) | DestroyGpuInstance(gpu=gpu, start=start, size=size):
            return Mark(gpu, start, size)
        case SetComputeMode(gpu=gpu):
            return Mark(gpu, 0, 0)
        case _:
            return None
