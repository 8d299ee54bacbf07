"""
Ownership marks: which instances on a node's GPUs are ours, for an agent that lost its journal together with the ledger.

A mark is a place. It exists from before an instance is created until it is gone, and does not name its slice. Nothing
is synced: an instance does not survive what a mark would not survive. A mark without an instance of ours would claim a
later foreign one, so none is added where an instance exists.
"""

from collections.abc import Iterable
from pathlib import Path

from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import DeviceErrorKind, GpuRead, OwnershipMark, Result
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, GpuInstruction, SetComputeMode
from sluice_node_agent.device.port import DeviceError, GpuBackend, InsufficientResourcesError
from sluice_node_agent.shell.journal.ownership_file import OwnershipFile
from sluice_node_agent.shell.runner.device_calls import on_device

_MODE = 0o700
_UNCLEAR = {DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN}
"""After these errors it is unknown whether a GPU's mode was set."""
_NOT_OURS = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}


class OwnershipMarkError(DeviceError):
    """A mark cannot be written or removed: then nothing is created, because its owner would be unknown."""


class OwnershipMarks:
    """The marks of one node. Calls block briefly; those about one GPU never overlap (see `runner.executors`)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        """Read the marks; those of another boot are dropped. Raises OSError."""
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        self._file = OwnershipFile(directory / "places", boot_id)

    def found(self, gpus: Iterable[GpuReport], *, all_told: bool = True) -> tuple[OwnershipMark, ...]:
        """
        The marks with an instance, or maybe one; others are removed. Raises OSError.

        `gpus` are all of the node (`all_told`; else some could not read their UUID): if there was no file, and no
        instance on any of them, every later one has a mark. A GPU that is not shown is unknown.
        """
        gpus = tuple(gpus)
        is_empty = bool(gpus) and all_told and not any(gpu.lost or _has_instances(gpu) for gpu in gpus)
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

    # -- inside ---------------------------------------------------------------------------------------------------

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
    Raises InsufficientResourcesError if such an instance exists, as the driver would.

    The driver's error may be unclear, or the agent may die before it arrives: then an administrator's instance that no
    reading has shown yet would have our mark or a doubt, and count as ours.
    """
    there = backend.instance_at(order.gpu, order.profile_id, order.start, order.size)
    if there is not None:
        raise InsufficientResourcesError(f"{order.gpu}: GPU instance {there} is at {order.start}:{order.size} already")


def _ends_mark(order: GpuInstruction, refusal: DeviceErrorKind, *, begins: bool, is_new: bool) -> bool:
    """
    Whether nothing of ours exists there after a refused step.

    After a refused creation nothing does, for any reason: a foreign instance that no reading has shown yet may have the
    place, and with a mark it would pass for ours. If the reason leaves it open, it is doubted. An instance that had a
    mark before (not `is_new`) is ours, and may be why the step was refused.
    """
    if not begins:
        return refusal in _NOT_OURS
    return is_new and (isinstance(order, CreateGpuInstance) or refusal not in _UNCLEAR)


def _has_instances(gpu: GpuReport) -> bool:
    return bool(gpu.instances) and not gpu.fixed_layout


def _of(order: GpuInstruction) -> OwnershipMark | None:
    """The mark of a step that creates or destroys an instance."""
    match order:
        case CreateGpuInstance(gpu=gpu, start=start, size=size) | DestroyGpuInstance(gpu=gpu, start=start, size=size):
            return OwnershipMark(gpu, start, size)
        case SetComputeMode(gpu=gpu):
            return OwnershipMark(gpu, 0, 0)
        case _:
            return None
