"""
Marks: where instances on a node's GPUs are ours, for an agent that has lost its journal while the ledger is lost, too.

A mark is a place. It is there from before an instance is made until it is gone, and says nothing of who it was made
for. Nothing is synced: an instance does not survive what a mark would not survive. A mark must not stay where nothing
of ours is, because what is there, or is made there later, is somebody else's; so none is put where something is.
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
"""After these nobody knows whether a GPU was put in a mode."""
_NOT_OURS = {DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT}


class OwnershipMarkError(DeviceError):
    """A mark cannot be written or removed: then nothing is made either, because nobody could tell whose it is."""


class OwnershipMarks:
    """The marks of one node. Calls block briefly; those about one GPU never meet (see `runner.executors`)."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        """Find what is there; what is of another boot is forgotten. Raises OSError."""
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        self._file = OwnershipFile(directory / "places", boot_id)

    def found(self, gpus: Iterable[GpuReport], *, all_told: bool = True) -> tuple[OwnershipMark, ...]:
        """
        Those behind which something is, or may be; the others are removed. Raises OSError.

        `gpus` are all of the node (`all_told`; else some could not tell their UUID): where there was no file, and
        nothing is on any of them, whatever comes has a mark. Where none is shown, nothing is known of them.
        """
        gpus = tuple(gpus)
        is_empty = bool(gpus) and all_told and not any(gpu.lost or _has_instances(gpu) for gpu in gpus)
        if self._file.was_missing and is_empty:
            self._file.begin_whole()
        for gpu in gpus:
            self._compare(gpu)
        return tuple(self._file.marks())

    def unmarked(self) -> tuple[OwnershipMark, ...] | None:
        """Where an instance of ours may be without a mark; None: anywhere."""
        return tuple(self._file.doubts()) if self._file.is_whole else None

    def carry_out(self, backend: GpuBackend, order: GpuInstruction) -> Result:
        """Take one step on a GPU, with its mark before it or gone after it. Raises DeviceError."""
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
        """Nobody makes anything on this GPU now: a mark of a place with no instance speaks of nothing."""
        if gpu.lost:
            return
        there = {(instance.start, instance.size) for instance in gpu.instances}
        for mark in (*self._file.marks(), *self._file.doubts()):
            if mark.gpu == gpu.uuid and mark.size and (mark.start, mark.size) not in there:
                self._file.take_away(mark)
                self._file.settle(mark)

    def _tidy_if_possible(self, mark: OwnershipMark | None, result: Result) -> None:
        """The step was taken, which is what the caller must hear; the next reading of the GPU does it otherwise."""
        try:
            if mark is not None:
                self._file.settle(mark)
            if isinstance(result, GpuRead):
                self._compare(result.report)
        except OSError:
            return

    def _remove_if_possible(self, mark: OwnershipMark, *, doubted: bool) -> None:
        """The refusal is what the caller must hear; the next reading of the GPU removes the mark otherwise."""
        try:
            if doubted:
                self._file.doubt(mark)
            self._file.take_away(mark)
        except OSError:
            return


def _refuse_taken(backend: GpuBackend, order: CreateGpuInstance) -> None:
    """
    Raises InsufficientResourcesError where such an instance is there, as the driver would.

    But that may say it unclearly, or the agent may die before it is heard: an administrator's, that no reading has
    shown yet, would have our mark or be doubted, and be taken for ours.
    """
    there = backend.instance_at(order.gpu, order.profile_id, order.start, order.size)
    if there is not None:
        raise InsufficientResourcesError(f"{order.gpu}: GPU instance {there} is at {order.start}:{order.size} already")


def _ends_mark(order: GpuInstruction, refusal: DeviceErrorKind, *, begins: bool, is_new: bool) -> bool:
    """
    Whether nothing of ours is there after a refused step.

    After a refused creation nothing is, for whatever reason it was refused: the place may be taken by somebody's that
    no reading has shown yet, and with a mark it would pass for ours. Where the reason leaves it open, it is doubted.
    What had a mark before (not `is_new`) is ours, and may be why it was refused.
    """
    if not begins:
        return refusal in _NOT_OURS
    return is_new and (isinstance(order, CreateGpuInstance) or refusal not in _UNCLEAR)


def _has_instances(gpu: GpuReport) -> bool:
    return bool(gpu.instances) and not gpu.fixed_layout


def _of(order: GpuInstruction) -> OwnershipMark | None:
    """The mark that a step is about, if it makes or ends something."""
    match order:
        case CreateGpuInstance(gpu=gpu, start=start, size=size) | DestroyGpuInstance(gpu=gpu, start=start, size=size):
            return OwnershipMark(gpu, start, size)
        case SetComputeMode(gpu=gpu):
            return OwnershipMark(gpu, 0, 0)
        case _:
            return None
