"""Slice statuses that agents publish, each with the revision that it answers."""

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, RequestId
from sluice.contracts.messages.answers import ContainerDevices
from sluice.contracts.messages.base import Message, SpanSize, SpanStart


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a slice as the agent sees it. `uuid` is the MIG device's, or the GPU's when granted whole."""

    gpu: GpuUuid
    profile: str | None
    start: SpanStart
    size: SpanSize
    uuid: str = ""


class SliceReady(Message, frozen=True, kw_only=True):
    """The slice exists, was read back, and has its ticket directory."""

    allocation: AllocationId
    request: RequestId
    revision: int
    ticket: str
    devices: tuple[DeviceState, ...]
    containers: tuple[ContainerDevices, ...]
    warnings: tuple[str, ...] = ()
    """Warnings to its user, in sentences: an MPS daemon that restarted, a client that waits."""
    shrinking: bool = False
    """It was made smaller, and older processes still use the former size: it counts as before."""


class SliceFailed(Message, frozen=True, kw_only=True):
    """The slice could not be created, and nothing of it is left. Frees nothing: only `SliceGone` does."""

    allocation: AllocationId
    request: RequestId
    revision: int
    error: str
    message: str
    shrinking: bool = True
    """As in `SliceDegraded`."""


class SliceDegraded(Message, frozen=True, kw_only=True):
    """The slice is lost (reboot, lost GPU) and could not be recreated, or its GPU does not answer."""

    allocation: AllocationId
    request: RequestId
    revision: int
    message: str
    shrinking: bool = True
    """As in `SliceReady`; also while new sizes do not hold yet. Unknown from an older agent: it counts as before."""


class SliceQuarantined(Message, frozen=True, kw_only=True):
    """The slice cannot be destroyed: it is in use. Its place is out of use."""

    allocation: AllocationId
    request: RequestId
    revision: int
    message: str
    holders: tuple[str, ...] = ()


class SliceGone(Message, frozen=True, kw_only=True):
    """The instance does not exist, and no process of the tenant is left. The only terminal status."""

    allocation: AllocationId
    request: RequestId
    revision: int
    cause: str
    closing: bool = False
    """Published after `Closed` was seen, with a TTL: the last message about this slice."""
