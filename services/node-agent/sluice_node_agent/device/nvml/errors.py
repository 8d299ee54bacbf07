"""Translates NVML's errors to those of `device.port`, in one table (NVML API reference, `nvmlReturn_t`). No exception
of pynvml gets past it: they cannot be hashed, and comparing one with another exception raises (nvidia-ml-py 13). Nor
does its UnicodeDecodeError for text of the driver that is not UTF-8, which is no NVMLError."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.device import port
from sluice_node_agent.device.gpu_health import reset_of

T = TypeVar("T")

_VERSIONS = "update the driver, or reboot the node if it was updated under a running kernel"

_MEANINGS: dict[int, tuple[type[port.DeviceError], str]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (port.DeviceError, "NVML is not initialized"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (port.InvalidArgumentError, "the driver rejects an argument as invalid"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (port.NotSupportedError, "the GPU does not support it, or MIG is off"),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        port.NoPermissionError,
        "no permission: the agent must run as root with CAP_SYS_ADMIN, or hold the MIG capability mig/config",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: (port.NotFoundError, "there is none"),
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: (port.DeviceError, "there was more than could be read at once"),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (port.GpuLostError, "the GPU's external power is not connected"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (port.DeviceError, "the NVIDIA driver is not loaded"),
    pynvml.NVML_ERROR_TIMEOUT: (port.TimedOutError, "the driver did not answer in time"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        port.DriverMismatchError,
        f"this driver does not know the call; {_VERSIONS}",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (port.GpuLostError, "the GPU does not answer"),
    pynvml.NVML_ERROR_RESET_REQUIRED: (port.GpuLostError, "the GPU must be reset before it answers again"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        port.DriverMismatchError,
        f"the library and the kernel's driver are of different versions; {_VERSIONS}",
    ),
    pynvml.NVML_ERROR_IN_USE: (port.InUseError, "in use by another client"),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        port.InsufficientResourcesError,
        "no room there, or an engine is used up",
    ),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (
        port.DriverMismatchError,
        f"this driver has another version of the call; {_VERSIONS}",
    ),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (port.GpuLostError, "the GPU is not on this node"),
    pynvml.NVML_ERROR_UNKNOWN: (port.DeviceError, "the driver failed without saying why"),
}

_RESET_HELPS = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_LOST = frozenset(code for code, (kind, _) in _MEANINGS.items() if kind is port.GpuLostError)
MISSING = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
"""The driver does not know the call, or has another version of it."""

_NO_BACKEND: dict[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "the NVIDIA driver's library libnvidia-ml.so.1 was not found: install the NVIDIA driver on this node, and give"
        " a container its libraries by the NVIDIA runtime with NVIDIA_DRIVER_CAPABILITIES=utility"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is not loaded: load its kernel module (modprobe nvidia) and see whether nvidia-smi answers"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "the NVIDIA driver gives this process no permission: run the agent as root, with access to /dev/nvidiactl and"
        " the /dev/nvidia<n> of its GPUs"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver's library and its kernel module are of different versions: reboot the node, or reload the"
        " kernel module, so that both are of the installed version"
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        "libnvidia-ml.so.1 is too old, or is not NVIDIA's: install a driver of the branch R470 or newer"
    ),
}


def meaning(doing: str, code: int, gpu: GpuUuid | None = None) -> port.DeviceError:
    """NVML's return code as our error. A reset is advised only for a `gpu`: an index may be another GPU's soon."""
    kind, words = _MEANINGS.get(code, (port.DeviceError, "the driver failed"))
    if code in _RESET_HELPS:
        words = f"{words}; {reset_of(gpu) if gpu else 'reboot the node'}"
    return kind(f"{doing}: {words} (NVML error {code})")


@contextmanager
def told(doing: str, gpu: GpuUuid | None = None) -> Iterator[None]:
    """Raise NVML's errors, and pynvml's for invalid text, as those of `device.port`. Arguments as for `meaning`."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise meaning(doing, error.value, gpu) from None
    except UnicodeDecodeError:
        raise port.DeviceError(f"{doing}: the driver's answer is not valid text") from None


def known_or(default: T, call: Callable[..., T], *arguments: Any) -> T:
    """A fact that not every GPU or driver reports, or `default`. Raises pynvml.NVMLError for a lost GPU only."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise
        return default
    except UnicodeDecodeError:
        return default


def told_or(untold: Collection[int], default: T, call: Callable[..., T], *arguments: Any) -> T:
    """The result of `call`, or `default` for one of the codes `untold`. Any other error is raised."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in untold:
            return default
        raise


def older(call: Callable[[], T], instead: Callable[[], T]) -> T:
    """The result of `call`, or of `instead` on drivers that do not know it or have another version of it."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in MISSING:
            return instead()
        raise


def no_backend(code: int) -> port.BackendError:
    """Why the GPUs of this node cannot be used, as one sentence with the remedy."""
    words = _NO_BACKEND.get(code)
    if words is None:
        _, cause = _MEANINGS.get(code, (port.DeviceError, "the driver failed"))
        words = f"NVML could not be initialized ({cause}): see whether nvidia-smi answers on this node"
    return port.BackendError(f"{words} (NVML error {code})")
