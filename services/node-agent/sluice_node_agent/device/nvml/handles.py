"""
NVML's handles of GPUs, kept by UUID. Thread-safe. After a reset or a change of MIG mode a handle is stale: NVML returns
"invalid argument" or "GPU is lost", and may give the same pointer to another GPU (nvml.h).
"""

import threading
from collections.abc import Callable
from ctypes import c_void_p, cast
from typing import TypeVar

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.device.nvml.errors import meaning, told
from sluice_node_agent.device.nvml.mig import Handle
from sluice_node_agent.device.port import GpuLostError, InvalidArgumentError

T = TypeVar("T")


class GpuHandles:
    """The handles of one node's GPUs."""

    def __init__(self, renewed: Callable[[GpuUuid], None]) -> None:
        """Call `renewed` for a GPU whose handle changed: facts kept about it may be wrong."""
        self._renewed = renewed
        self._lock = threading.Lock()
        self._handles: dict[GpuUuid, Handle] = {}

    def all(self) -> dict[GpuUuid, Handle]:
        """All known handles."""
        with self._lock:
            return dict(self._handles)

    def at(self, index: int, known: GpuUuid | None) -> tuple[GpuUuid, Handle]:
        """The GPU at NVML's index. Raises DeviceError when it cannot read its UUID; the error names `known`."""
        with told(f"GPU {index}", known):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return GpuUuid(str(pynvml.nvmlDeviceGetUUID(handle))), handle

    def keep(self, gpu: GpuUuid, handle: Handle) -> None:
        """This is the handle of the GPU now."""
        with self._lock:
            old = self._handles.get(gpu)
            self._handles[gpu] = handle
        if old is not None and address(old) != address(handle):
            self._renewed(gpu)

    def on(self, gpu: GpuUuid, doing: str, action: Callable[[Handle], T]) -> T:
        """
        Call `action` with a GPU's handle; once more with a new one when that was stale. Raises DeviceError, with
        `doing`. The UUID is compared first, so that no action reaches another GPU.
        """
        what = f"{gpu}: {doing}"
        handle = self._valid(gpu)
        try:
            with told(what, gpu):
                return action(handle)
        except (InvalidArgumentError, GpuLostError):
            fresh = self._fetch(gpu)
            if address(fresh) == address(handle):
                raise
        with told(what, gpu):
            return action(fresh)

    def _valid(self, gpu: GpuUuid) -> Handle:
        with self._lock:
            handle = self._handles.get(gpu)
        if handle is not None:
            try:
                if str(pynvml.nvmlDeviceGetUUID(handle)) == gpu:
                    return handle
            except (pynvml.NVMLError, UnicodeDecodeError):
                pass  # stale, slow, lost, or no valid UUID: fetching it again shows which
        return self._fetch(gpu)

    def _fetch(self, gpu: GpuUuid) -> Handle:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
                raise GpuLostError(f"{gpu}: the GPU is not on this node") from None
            raise meaning(f"{gpu}: finding it", error.value, gpu) from None
        self.keep(gpu, handle)
        return handle


def address(handle: Handle) -> int | None:
    """The address that identifies a handle; None for no handle."""
    return cast(handle, c_void_p).value
