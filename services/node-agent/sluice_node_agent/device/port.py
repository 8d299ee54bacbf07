"""The port to a node's GPUs, implemented by NVML and by simulated devices. Every call blocks, is about one GPU, and
returns or raises a DeviceError. A GPU instance (GI) holds memory slices, a compute instance (CI) in it makes it a MIG
device with a UUID; they are created in this order and destroyed in reverse."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.kube.names import DNS_SUBDOMAIN
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import DeviceErrorKind, Holder
from sluice_node_agent.core.usage import DeviceUse


class DeviceError(Exception):
    """A device operation failed. Its text is one sentence."""

    kind: ClassVar[DeviceErrorKind] = DeviceErrorKind.UNKNOWN

    def __init_subclass__(cls, *, kind: DeviceErrorKind = DeviceErrorKind.UNKNOWN) -> None:
        cls.kind = kind


class InsufficientResourcesError(DeviceError, kind=DeviceErrorKind.INSUFFICIENT_RESOURCES):
    """No room at that placement, or no engine left (NVML_ERROR_INSUFFICIENT_RESOURCES)."""


class InUseError(DeviceError, kind=DeviceErrorKind.IN_USE):
    """A process, or an instance inside, holds it (NVML_ERROR_IN_USE)."""


class NotSupportedError(DeviceError, kind=DeviceErrorKind.NOT_SUPPORTED):
    """The GPU cannot do this, or MIG is off (NVML_ERROR_NOT_SUPPORTED)."""


class NoPermissionError(DeviceError, kind=DeviceErrorKind.NO_PERMISSION):
    """The process lacks permission (NVML_ERROR_NO_PERMISSION)."""


class NotFoundError(DeviceError, kind=DeviceErrorKind.NOT_FOUND):
    """There is no such instance (NVML_ERROR_NOT_FOUND)."""


class GpuLostError(DeviceError, kind=DeviceErrorKind.GPU_LOST):
    """The GPU does not answer, or is not on this node (NVML_ERROR_GPU_IS_LOST)."""


class InvalidArgumentError(DeviceError, kind=DeviceErrorKind.INVALID_ARGUMENT):
    """No such profile, or a placement that the GPU does not list (NVML_ERROR_INVALID_ARGUMENT)."""


class DriverMismatchError(DeviceError, kind=DeviceErrorKind.DRIVER_MISMATCH):
    """Library and driver do not match (NVML_ERROR_LIB_RM_VERSION_MISMATCH, NVML_ERROR_FUNCTION_NOT_FOUND)."""


class DifferentError(DeviceError, kind=DeviceErrorKind.DIFFERENT):
    """The device differs from what was expected. It was left alone."""


class TimedOutError(DeviceError):
    """The driver did not answer in time (NVML_ERROR_TIMEOUT)."""


class BackendError(Exception):
    """The GPUs of this node cannot be used: no driver, no library, no permission. One sentence with the remedy."""


class RebootedError(Exception):
    """The node was rebooted under this process, which only simulated nodes do: the agent must restart."""


class GpuBackend(Protocol):
    """The GPUs of one node. Calls about one GPU come one at a time, from any thread."""

    def boot_id(self) -> str:
        """Identifies one boot of the node's kernel: instances do not survive it (/proc/sys/kernel/random/boot_id)."""

    def driver_version(self) -> str:
        """As the driver reports it."""

    def read(self) -> tuple[GpuReport, ...]:
        """All GPUs in index order, each with every GPU instance on it; `allocation` is None and `creatable` empty. A
        GPU that does not answer is `lost` and not healthy, without instances; one that must get no new slices is not
        healthy, with its instances and the reason. A fixed layout is marked so, its instances that cannot be assigned
        have the reason (`unusable`), and calls that would change it raise NotSupportedError."""

    def nameless(self) -> dict[int, str]:
        """The GPUs that `read` left out, because they could not read their UUID: index to reason."""

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        """One GPU, as in `read`. Raises GpuLostError when it is not on this node."""

    def instance_at(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int | None:
        """The id of the GPU instance of this profile at exactly this placement; None if there is none."""

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

    def uses(self, gpu: GpuUuid, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
        """The use of devices of a GPU (its own UUID, or those of MIG devices); missing ones are left out, as a whole
        GPU in MIG mode. A value that the driver does not report is None, not an error."""

    def troubled(self, timeout_s: float) -> tuple[GpuUuid, ...]:
        """Wait up to `timeout_s` for errors that the driver reports by itself (Xid); returns the GPUs to read, also
        those that were `nameless` and can read their UUID now. The only call that may overlap others."""

    def close(self) -> None:
        """Close the driver. No call may follow."""


ALL = "all"
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NODE = re.compile(rf"(?P<node>{DNS_SUBDOMAIN})(?::(?P<index>\d{{1,3}}))?")


@dataclass(frozen=True, slots=True)
class FixedLayoutSelector:
    """The selected GPUs of one node."""

    all: bool = False
    uuids: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()

    def __contains__(self, gpu: tuple[GpuUuid, int]) -> bool:
        """Whether a GPU (its UUID and its index) is selected."""
        uuid, index = gpu
        return self.all or uuid in self.uuids or index in self.indices


def parse_selector(named: Iterable[str], node: NodeName) -> FixedLayoutSelector:
    """Parse a node's entries: `all`, a node, `<node>:<index>`, or a GPU's UUID. Raises ValueError for any other."""
    everywhere, uuids, indices = False, set[str](), set[int]()
    for name in named:
        found = _NODE.fullmatch(name)
        if name == ALL:
            everywhere = True
        elif _UUID.fullmatch(name):
            uuids.add(f"GPU-{name.removeprefix('GPU-').lower()}")  # as drivers print them
        elif found is None:
            raise ValueError(f"{name[:100]!r} is no GPU: say all, a node's name, <node>:<index>, or a UUID (GPU-...)")
        elif found["node"] == node:
            everywhere |= found["index"] is None
            indices.update([int(found["index"])] if found["index"] is not None else [])
    return FixedLayoutSelector(everywhere, frozenset(uuids), frozenset(indices))


def refusal(gpu: GpuUuid, doing: str) -> str:
    return f"{gpu}: {doing} is refused: its layout is fixed by its administrator"
