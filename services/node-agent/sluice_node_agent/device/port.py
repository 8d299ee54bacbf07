"""
The port to a node's GPUs, in our words: what the simulated devices and NVML both can do.

Every call blocks, is about one GPU, and raises a DeviceError or says what is there. Nothing here decides, retries or
waits. The words follow the NVML API reference: a GPU instance (GI) holds memory slices, a compute instance (CI) in it
makes it a MIG device with a UUID; they are created in this order and destroyed in the other.
"""

from collections.abc import Collection
from typing import ClassVar, Protocol

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, InstanceReport
from sluice_node_agent.core.device_use import DeviceUse
from sluice_node_agent.core.events import DeviceErrorKind, Holder


class DeviceError(Exception):
    """A device did not do what it was asked to. Its text is one sentence."""

    kind: ClassVar[DeviceErrorKind] = DeviceErrorKind.UNKNOWN


class InsufficientResourcesError(DeviceError):
    """No room at that placement, or an engine is used up (NVML_ERROR_INSUFFICIENT_RESOURCES)."""

    kind = DeviceErrorKind.INSUFFICIENT_RESOURCES


class InUseError(DeviceError):
    """A process, or an instance inside, holds it (NVML_ERROR_IN_USE)."""

    kind = DeviceErrorKind.IN_USE


class NotSupportedError(DeviceError):
    """The GPU cannot do this, or MIG is off (NVML_ERROR_NOT_SUPPORTED)."""

    kind = DeviceErrorKind.NOT_SUPPORTED


class NoPermissionError(DeviceError):
    """The process may not (NVML_ERROR_NO_PERMISSION)."""

    kind = DeviceErrorKind.NO_PERMISSION


class NotFoundError(DeviceError):
    """There is no such instance (NVML_ERROR_NOT_FOUND)."""

    kind = DeviceErrorKind.NOT_FOUND


class GpuLostError(DeviceError):
    """The GPU does not answer, or is not on this node (NVML_ERROR_GPU_IS_LOST)."""

    kind = DeviceErrorKind.GPU_LOST


class InvalidArgumentError(DeviceError):
    """No such profile, or a placement that the GPU does not list (NVML_ERROR_INVALID_ARGUMENT)."""

    kind = DeviceErrorKind.INVALID_ARGUMENT


class DriverMismatchError(DeviceError):
    """Library and driver do not fit (NVML_ERROR_LIB_RM_VERSION_MISMATCH, NVML_ERROR_FUNCTION_NOT_FOUND)."""

    kind = DeviceErrorKind.DRIVER_MISMATCH


class DifferentError(DeviceError):
    """What is there is not what was expected. It was left alone."""

    kind = DeviceErrorKind.DIFFERENT


class TimedOutError(DeviceError):
    """The driver did not answer in time (NVML_ERROR_TIMEOUT)."""


class BackendError(Exception):
    """The GPUs of this node cannot be used at all: no driver, no library, no right. One sentence with the remedy."""


class RebootedError(Exception):
    """The node was rebooted under this process. Only simulated nodes can do that: the agent must start anew."""


class GpuBackend(Protocol):
    """The GPUs of one node. Calls about one GPU come one at a time, from any thread."""

    def boot_id(self) -> str:
        """One life of the node's kernel: instances do not survive it (/proc/sys/kernel/random/boot_id)."""

    def driver_version(self) -> str:
        """As the driver says it."""

    def read(self) -> tuple[GpuReport, ...]:
        """
        All GPUs in index order, each with every GPU instance on it, those without compute instance included.

        `allocation` is None and `creatable` empty. A GPU that does not answer is reported `lost` and not healthy,
        without instances; one that answers and must get no new slices (a critical Xid, MIG mode pending a reset) is
        reported not healthy, with its instances and the reason.

        A GPU whose layout is fixed says so; instances that are there and cannot be handed out say why (`unusable`),
        and each call that would make or destroy one there raises NotSupportedError.
        """

    def nameless(self) -> dict[int, str]:
        """The GPUs that `read` left out, because they could not even tell their UUID: by index, why."""

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        """One GPU, as in `read`. Raises GpuLostError when it is not on this node."""

    def instance(self, gpu: GpuUuid, gi_id: int) -> InstanceReport:
        """One GPU instance. Raises NotFoundError."""

    def instance_at(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int | None:
        """The id of the GPU instance of this profile that is at exactly this placement; None where none is."""

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int:
        """Create at exactly this placement (memory slices). Returns the id that the driver chose."""

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> str:
        """Create the compute instance that fills the GPU instance. Returns the MIG device's UUID."""

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, uuid: str) -> None:
        """Destroy the compute instance. Raises DifferentError when its MIG device is not `uuid`."""

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int, start: int, size: int) -> None:
        """Destroy the GPU instance. Raises DifferentError when it sits elsewhere than at this placement."""

    def processes(self, gpu: GpuUuid, uuid: str) -> tuple[Holder, ...]:
        """All processes on a MIG device, or on the whole GPU when `uuid` is its own. None where it does not exist."""

    def set_exclusive_process(self, gpu: GpuUuid, *, exclusive: bool) -> None:
        """Compute mode EXCLUSIVE_PROCESS, or DEFAULT. Raises NotSupportedError on a GPU in MIG mode."""

    def remaining(self, gpu: GpuUuid) -> dict[str, int]:
        """Per profile, how many more the driver says could be created now; empty without MIG."""

    def uses(self, gpu: GpuUuid, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
        """
        What devices of a GPU (its own UUID, or those of MIG devices) are used for; those that are not there left out.

        In MIG mode nothing is told of the whole GPU. What the driver does not tell is None, and no error.
        """

    def troubled(self, timeout_s: float) -> tuple[GpuUuid, ...]:
        """
        Wait up to `timeout_s` for the driver to tell of errors by itself (Xid); returns the GPUs that have to be read.
        One that was `nameless` is among them once it tells its UUID.

        The only call that may be under way beside others.
        """

    def close(self) -> None:
        """Let go of the driver. Nothing may be called any more."""
