"""
What NVML's errors mean, in one table: the border at which they become the errors of `device.port`.

Nothing of pynvml's exceptions gets past it. They cannot be hashed, and comparing one with any other exception raises
(nvidia-ml-py 13, class NVMLError), so they would break whoever logs, collects or compares errors.

Nor does the UnicodeDecodeError that pynvml raises when what the driver says is no UTF-8, as a process's name in Latin-1
or one that was cut within a letter. It is no NVMLError: it would get past all who mind only those, and end the agent.

Codes and their meaning: NVML API reference, `nvmlReturn_t`, and what each call says it returns.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.device.gpu_health import reset_of
from sluice_node_agent.device.port import (
    BackendError,
    DeviceError,
    DriverMismatchError,
    GpuLostError,
    InsufficientResourcesError,
    InUseError,
    InvalidArgumentError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
    TimedOutError,
)

T = TypeVar("T")

_VERSIONS = "update the driver, or reboot the node if it was updated under a running kernel"

_MEANINGS: dict[int, tuple[type[DeviceError], str]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (DeviceError, "NVML is not initialized"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (InvalidArgumentError, "the driver rejects an argument as invalid"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (NotSupportedError, "the GPU does not support it, or MIG is off"),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        NoPermissionError,
        "no permission: the agent must run as root with CAP_SYS_ADMIN, or hold the MIG capability mig/config",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: (NotFoundError, "there is none"),
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: (DeviceError, "there was more than could be read at once"),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (GpuLostError, "the GPU's external power is not connected"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (DeviceError, "the NVIDIA driver is not loaded"),
    pynvml.NVML_ERROR_TIMEOUT: (TimedOutError, "the driver did not answer in time"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (DriverMismatchError, f"this driver does not know the call; {_VERSIONS}"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (GpuLostError, "the GPU does not answer"),
    pynvml.NVML_ERROR_RESET_REQUIRED: (GpuLostError, "the GPU must be reset before it answers again"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        DriverMismatchError,
        f"the library and the kernel's driver are of different versions; {_VERSIONS}",
    ),
    pynvml.NVML_ERROR_IN_USE: (InUseError, "in use by another client"),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (InsufficientResourcesError, "no room there, or an engine is used up"),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (
        DriverMismatchError,
        f"this driver has another version of the call; {_VERSIONS}",
    ),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (GpuLostError, "the GPU is not on this node"),
    pynvml.NVML_ERROR_UNKNOWN: (DeviceError, "the driver failed without saying why"),
}

_RESET_HELPS = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_LOST = frozenset(code for code, (kind, _) in _MEANINGS.items() if kind is GpuLostError)
MISSING = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
"""The driver does not know the call, or another version of it."""

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


def meaning(doing: str, code: int, gpu: GpuUuid | None = None) -> DeviceError:
    """
    NVML's return code as our error. `doing` says which GPU and what was asked of it.

    A reset is advised only of a `gpu` that is known by its UUID: a place in the driver's list may be another's soon.
    """
    kind, words = _MEANINGS.get(code, (DeviceError, "the driver failed"))
    if code in _RESET_HELPS:
        words = f"{words}; {reset_of(gpu) if gpu else 'reboot the node'}"
    return kind(f"{doing}: {words} (NVML error {code})")


@contextmanager
def told(doing: str, gpu: GpuUuid | None = None) -> Iterator[None]:
    """Raise NVML's errors, and pynvml's at what is no text, as those of `device.port`. Arguments as for `meaning`."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise meaning(doing, error.value, gpu) from None
    except UnicodeDecodeError:
        raise DeviceError(f"{doing}: the driver's answer is not valid text") from None


def known_or(default: T, call: Callable[..., T], *arguments: Any) -> T:
    """
    A fact that not every GPU or driver can tell, or `default`. A GPU that is lost is no missing fact; a name that is
    no text is one, for nobody could read it.

    Raises pynvml.NVMLError for a lost GPU only.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise
        return default
    except UnicodeDecodeError:
        return default


def told_or(untold: Collection[int], default: T, call: Callable[..., T], *arguments: Any) -> T:
    """
    What `call` answers, or `default` where NVML says one of the codes `untold`: that this cannot be asked here.

    For what something is concluded from: any other error is no answer, and raised.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in untold:
            return default
        raise


def older(call: Callable[[], T], instead: Callable[[], T]) -> T:
    """What `call` answers, or `instead` on drivers that do not know it or speak another version of it."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in MISSING:
            return instead()
        raise


def no_backend(code: int) -> BackendError:
    """Why the GPUs of this node cannot be used at all, as one sentence with the remedy."""
    words = _NO_BACKEND.get(code)
    if words is None:
        _, cause = _MEANINGS.get(code, (DeviceError, "the driver failed"))
        words = f"NVML could not be initialized ({cause}): see whether nvidia-smi answers on this node"
    return BackendError(f"{words} (NVML error {code})")
