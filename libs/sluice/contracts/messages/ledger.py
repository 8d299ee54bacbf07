"""The ledger: booked places, which are the orders to the agents."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.messages.base import Message, SpanSize, SpanStart
from sluice.contracts.messages.requests import HostRoom, ResourceClaimRef


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a device that tenants of one namespace and `uid` use. `sm_partition`: percent of SMs, 0: no bound."""

    mode: Literal["mps", "fractional"]
    uid: int
    memory_mib: int
    sm_partition: int = 0
    quota_request_permille: int = 1000
    quota_limit_permille: int = 1000


class DeviceGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One booked place: a span of memory slices of one GPU, for one container.

    `profile` is None for a whole GPU without MIG (then `start` is 0 and `size` its memory slices, at least 1). With a
    `share` the span is a shared device: every grant of a share on it names the same span."""

    container: str
    gpu: GpuUuid
    profile: str | None
    start: SpanStart
    size: SpanSize
    share: Share | None = None


class Booking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The booking of one allocation. Its Grant and its Revoke both carry it, because readers see only the last."""

    allocation: AllocationId
    request: RequestId
    request_revision: int
    source: SourceName
    owner: str
    namespace: str
    name: str
    node: NodeName
    devices: tuple[DeviceGrant, ...]
    room: HostRoom = HostRoom()
    """The pod's other requests on its node: CPU, memory and so on."""
    instead_of: str = ""
    """The requested profile, where a larger one serves."""
    resource_claims: tuple[ResourceClaimRef, ...] = ()
    """As in its request: the kubelet hands its devices over when it prepares these."""


class NodeOpened(Message, frozen=True, kw_only=True):
    """A node may be used: everything its agent reported is in the ledger."""

    node: NodeName
    incarnation: Incarnation
    boot_id: str
    agent_run: RunId
    adopted: tuple[AllocationId, ...] = ()
    """Reported slices that are in the ledger. A reader may see these entries later than this one."""
    lived: tuple[AllocationId, ...] = ()
    """Granted slices that were ready and that the agent did not report: a new disk. Their pods wait for them."""


class NodeClosed(Message, frozen=True, kw_only=True):
    """A node was removed; it is unused until adopted again. Replaces `NodeOpened`, with a TTL.

    Only under this message are grants closed that no agent reported gone."""

    node: NodeName
    incarnation: Incarnation
    cause: str


class Grant(Message, frozen=True, kw_only=True):
    """The place is booked, and the agent shall create the slice (LAW 2: the ledger entry is the command)."""

    revision: int
    incarnation: Incarnation
    booking: Booking
    after: tuple[AllocationId, ...] = ()
    """Carried out only when these are gone."""
    evict: bool = False
    """Whether the pods of those are evicted; otherwise they are waited for."""
    adopted: bool = False
    """Written while adopting the node, for a slice that its agent reported."""
    counts: tuple[DeviceGrant, ...] = ()
    """For shares being shrunk: what they count until the agent confirms. Empty: what the booking says."""


class Revoke(Message, frozen=True, kw_only=True):
    """The agent shall destroy the slice. The place stays booked until `SliceGone`."""

    revision: int
    incarnation: Incarnation
    booking: Booking
    cause: str
    after: tuple[AllocationId, ...] = ()
    """As in its Grant, which the agent may not have read: while one of these exists, nothing was created for it."""


class Closed(Message, frozen=True, kw_only=True):
    """The agent published `SliceGone`: the place is free. Kept for some hours."""

    revision: int
    allocation: AllocationId
    request: RequestId
    node: NodeName
    cause: str
    removed: bool = False
    """Closed without `SliceGone`, with its node. If the agent returns with the slice, it is booked again first."""
    incarnation: Incarnation = Incarnation("")
    """Of the bus in which its node's end was decided: void in another one. Empty from an older allocator."""
