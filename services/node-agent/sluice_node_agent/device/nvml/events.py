"""NVML's handles and events. A handle is kept by UUID: after a reset or a change of MIG mode it is stale, and its
pointer may be another GPU's (nvml.h). GPUs are registered in the event set before each wait, because a reset removes
them from it. One without events is left out; the agent's own readings cover it."""

import threading
import time
from collections.abc import Callable, Mapping
from ctypes import c_void_p, cast
from dataclasses import dataclass
from typing import TypeVar

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice.runtime import logs
from sluice_node_agent.device.nvml.errors import meaning, told
from sluice_node_agent.device.nvml.mig import MIG_PREFIX, Handle
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
        with self._lock:
            return dict(self._handles)

    def at(self, index: int, known: GpuUuid | None) -> tuple[GpuUuid, Handle]:
        """The GPU at NVML's index. Raises DeviceError when it cannot read its UUID; the error names `known`."""
        with told(f"GPU {index}", known):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return GpuUuid(str(pynvml.nvmlDeviceGetUUID(handle))), handle

    def keep(self, gpu: GpuUuid, handle: Handle) -> None:
        with self._lock:
            old = self._handles.get(gpu)
            self._handles[gpu] = handle
        if old is not None and address(old) != address(handle):
            self._renewed(gpu)

    def on(self, gpu: GpuUuid, doing: str, action: Callable[[Handle], T]) -> T:
        """Call `action` with a GPU's handle; once more with a new one when that was stale. Raises DeviceError, with
        `doing`. The UUID is compared first, so that no action reaches another GPU."""
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


STEP_S = 0.5
"""The longest single wait inside NVML: `close` waits for its end, because a set in use must not be freed."""
EVENTS_MAX = 256
"""Events per wait: more than the Xids of a bad second on eight GPUs; others come with the next wait."""

_XID = pynvml.nvmlEventTypeXidCriticalError
_WANTED = (
    _XID
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An event of a GPU; `xid` is 0 for other events. `gpu` is None when NVML does not name it."""

    gpu: GpuUuid | None
    xid: int = 0


class EventSet:
    """One event set. `wait` is called by one thread at a time; `forget` and `close` by any."""

    def __init__(self) -> None:
        self._log = logs.get("nvml")
        self._closing = threading.Event()
        self._waiting = threading.Lock()
        self._lock = threading.Lock()
        self._registered: set[GpuUuid] = set()
        self._set = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._log.warning("this driver reports no errors by itself", code=error.value)

    def forget(self, gpu: GpuUuid) -> None:
        """The GPU was reset, or has another handle: register it again."""
        with self._lock:
            self._registered.discard(gpu)

    def wait(self, devices: Mapping[GpuUuid, Handle], timeout_s: float) -> tuple[GpuEvent, ...]:
        """The events of these GPUs, within up to `timeout_s`. Ends early when it is closed."""
        with self._waiting:
            for gpu, device in devices.items():
                self._register(gpu, device)
            # By handle: a GPU that fell off the bus cannot read its UUID.
            whose = {address(device): gpu for gpu, device in devices.items()}
            if self._set is None or not self._registered:
                self._closing.wait(timeout_s)
                return ()
            end = time.monotonic() + timeout_s
            found: list[GpuEvent] = []
            while not self._closing.is_set() and len(found) < EVENTS_MAX:
                # After the first, only pending ones are taken.
                left_s = 0.0 if found else min(STEP_S, max(0.0, end - time.monotonic()))
                trouble = self._next(left_s, whose)
                if trouble is not None:
                    found.append(trouble)
                    if trouble.gpu is None:  # all are read anyway; NVML may repeat it at once
                        self._closing.wait(max(0.0, min(STEP_S, end - time.monotonic())))
                        break
                elif found or time.monotonic() >= end:
                    break
            return tuple(found)

    def close(self) -> None:
        self._closing.set()
        with self._waiting:
            if self._set is not None:
                try:
                    pynvml.nvmlEventSetFree(self._set)
                except pynvml.NVMLError as error:
                    self._log.warning("the event set could not be freed", code=error.value)
                self._set = None

    def _next(self, timeout_s: float, whose: Mapping[int | None, GpuUuid]) -> GpuEvent | None:
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, int(timeout_s * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            # A GPU fell off the bus, most likely. Reading all of them finds it.
            self._log.warning("waiting for the driver's events failed", code=error.value)
            return GpuEvent(None)
        xid = int(event.eventData) if event.eventType & _XID else 0
        return GpuEvent(whose.get(address(event.device)) or _gpu_of(event.device), xid)

    def _register(self, gpu: GpuUuid, device: Handle) -> None:
        with self._lock:
            if self._set is None or gpu in self._registered:
                return
            self._registered.add(gpu)
        try:
            wanted = pynvml.nvmlDeviceGetSupportedEventTypes(device) & _WANTED
            if wanted:
                pynvml.nvmlDeviceRegisterEvents(device, wanted, self._set)
        except pynvml.NVMLError as error:
            # Not retried before a reset: it would fail each time.
            self._log.warning("this GPU reports no errors by itself", gpu=gpu, code=error.value)


def _gpu_of(device: Handle) -> GpuUuid | None:
    try:
        uuid = str(pynvml.nvmlDeviceGetUUID(device))
        if uuid.startswith(MIG_PREFIX):
            uuid = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)))
    except (pynvml.NVMLError, UnicodeDecodeError):  # invalid text names no GPU: all are read then
        return None
    return GpuUuid(uuid)
