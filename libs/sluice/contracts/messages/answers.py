"""The results of a request: its binding, why it waits, and evictions."""

import msgspec

from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.messages.requests import Held
from sluice.contracts.reasons import ReasonCount, Refusal


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """What one container needs to use its devices."""

    container: str
    visible_devices: str
    """NVIDIA_VISIBLE_DEVICES: UUIDs, comma-separated."""
    memory_mib: int = 0
    driver_capabilities: str = "compute,utility"
    """NVIDIA_DRIVER_CAPABILITIES. The request decides it: it counts in Bound only."""
    mps_pipe_directory: str = ""
    """CUDA_MPS_PIPE_DIRECTORY on the node, of the first shared device."""
    mps_log_directory: str = ""
    active_thread_percentage: int = 0
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; 0 without MPS."""
    pinned_memory_limit: str = ""
    """CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, by device index (`0=4096M`)."""
    quota_socket: str = ""
    """Of its time quota, on the node (docs/time-quota.md); empty if not enforced."""


class Bound(Message, frozen=True, kw_only=True):
    """The request has its slice. Pods are pinned by this message, once."""

    request: RequestId
    request_revision: int
    allocation: AllocationId
    node: NodeName
    revision: int
    """+1 each time strings or warnings change (after a reboot the slice has another UUID and ticket)."""
    ticket: str
    containers: tuple[ContainerDevices, ...]
    slice_sequence: int = 0
    """The sequence in STATE of the agent's status, for allocators that do not read `slice_operation`."""
    warnings: tuple[str, ...] = ()
    source: SourceName = SourceName("")
    """As in `Refused`."""
    incarnation: Incarnation = Incarnation("")
    """The incarnation of the bus in which it was decided; empty from an older allocator. Void in another one."""
    slice_operation: OperationId = OperationId("")
    """Of the agent's status, so that a lagging allocator overwrites nothing newer (STATE reuses sequences)."""
    waives: tuple[AllocationId, ...] = ()
    """Its other grants, to be revoked. An older allocator revokes them unnamed."""

    def is_for(self, held: Held | None) -> bool:
        """Whether it agrees with the allocation that the source remembers: an older allocator's may land late."""
        return held is None or held.allocation == self.allocation


class Refused(Message, frozen=True, kw_only=True):
    """The request is wrong in itself, or exceeds the configured limits.

    Older allocators also refused what no known model could serve; a newer one waives that."""

    request: RequestId
    request_revision: int
    refusal: Refusal
    source: SourceName = SourceName("")
    """The source of the request, which alone can withdraw it; empty from an older allocator."""
    waives: tuple[AllocationId, ...] = ()
    """As in `Bound`."""


class Released(Message, frozen=True, kw_only=True):
    """Nothing is held for the request. Never published before `SliceGone`."""

    request: RequestId
    cause: str


class Waived(Message, frozen=True, kw_only=True):
    """
    The request will not be bound to these allocations, which are taken back: its group does not fit, an earlier grant
    used up the quota, the node does not answer, or they are unusable. Without allocations: an earlier refusal no longer
    holds.

    It replaces `Bound` under the same guard, so one of the two is final. The pod waits on; `Bound` of another
    allocation may follow.
    """

    request: RequestId
    request_revision: int
    allocations: tuple[AllocationId, ...]
    cause: str
    incarnation: Incarnation = Incarnation("")
    """The incarnation of the bus in which it was decided; empty from an older allocator. Void in another one."""
    source: SourceName = SourceName("")
    """As in `Refused`."""
    alone: bool = False
    """Whether the rest of its group keeps its places while it looks for another. Missing from an older allocator."""


class Pending(Message, frozen=True, kw_only=True):
    """Why a request waits: the first reason as a sentence, all of them counted."""

    request: RequestId
    request_revision: int
    message: str
    reasons: tuple[ReasonCount, ...]


class WaitOver(Message, frozen=True, kw_only=True):
    """The request waits no longer; its binding says why."""

    request: RequestId


class EvictionOrdered(Message, frozen=True, kw_only=True):
    """The source shall evict the pod."""

    request: RequestId
    cause: str
    incarnation: Incarnation = Incarnation("")
    """Of STATE when it was ordered: void in another one. Empty from an older writer."""


class EvictionOver(Message, frozen=True, kw_only=True):
    """The pod need not be evicted any more, or is gone. A completed eviction is not undone."""

    request: RequestId


class EvictionDone(Message, frozen=True, kw_only=True):
    """The pod was evicted."""

    request: RequestId


class EvictionBlocked(Message, frozen=True, kw_only=True):
    """Why the pod could not be evicted."""

    request: RequestId
    why: str
