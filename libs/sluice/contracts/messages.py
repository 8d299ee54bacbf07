"""
Every message on the bus.

Each is complete in itself (a reader must be right seeing only the last one), frozen, and tagged with its type's name.
Unknown fields are ignored, so a newer writer may add; fields with a default may be missing, so an older writer may
omit. Units: MiB, percent, SMs, memory slices; times are for people only.
"""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId, SourceName
from sluice.contracts.refusals import ReasonCount, Refusal


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """What every message is: a frozen struct whose `type` on the wire is its class name."""


# -- requests -----------------------------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one container asks for: `gpus` devices of one shape on one node.

    Of `profile`, `sm_count`, `sm_percentage`, `memory_mib` any may be set; all that are set must hold. None set means
    a whole GPU each.
    """

    container: str
    gpus: int = 1
    mode: Literal["exclusive"] = "exclusive"
    profile: str | None = None
    sm_count: int | None = None
    sm_percentage: int | None = None
    memory_mib: int | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a request is bound to, as its source remembers it.

    After the broker was wiped nothing else tells that a running pod's slice is on a node that has not been opened yet;
    the request must wait for that node instead of being given a second slice.
    """

    node: NodeName
    allocation: AllocationId


class AllocationRequested(Message, frozen=True, kw_only=True):
    """A pod asks. Granted whole, on one node, or not at all."""

    revision: int
    source: SourceName
    namespace: str
    name: str
    origin: str
    """Where a person finds it: a file, or `namespace/name`."""
    owner: str
    """The pod's UID: whose processes must be gone before the slice is."""
    claims: tuple[Claim, ...]
    priority: int = 0
    held: Held | None = None


class RequestRejected(Message, frozen=True, kw_only=True):
    """What was written cannot be understood; the source itself refuses it."""

    revision: int
    source: SourceName
    origin: str
    namespace: str = ""
    name: str = ""
    refusal: Refusal


WithdrawCause = Literal["containers ended", "pod gone"]


class RequestWithdrawn(Message, frozen=True, kw_only=True):
    """Nobody wants it any more: every container has ended, or the object is gone. Terminal."""

    revision: int
    source: SourceName
    cause: WithdrawCause
    held: Held | None = None
    closing: bool = False
    """Said after `Released` was seen, with a TTL: the last word about this request."""


class SourceSynced(Message, frozen=True, kw_only=True):
    """One source has published all it has: `count` live requests, after its `epoch`-th full listing."""

    source: SourceName
    run: RunId
    epoch: int
    count: int


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class HostFacts(Message, frozen=True, kw_only=True):
    """What a node has besides GPUs, so that a pod is pinned only where it can really run."""

    cpu_cores: float
    memory_mib: int
    pods_free: int
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False


# -- the ledger ---------------------------------------------------------------------------------------------------


class DeviceGrant(msgspec.Struct, frozen=True, kw_only=True):
    """
    One booked place: a span of memory slices of one GPU, for one container.

    `profile` is None for a whole GPU without MIG (then `start` is 0 and `size` its memory slices, at least 1).
    """

    container: str
    gpu: GpuUuid
    profile: str | None
    start: int
    size: int


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """What was booked for one allocation: the same in its Grant and in its Revoke, for a reader sees only the last."""

    allocation: AllocationId
    request: RequestId
    request_revision: int
    source: SourceName
    owner: str
    namespace: str
    name: str
    node: NodeName
    devices: tuple[DeviceGrant, ...]


class NodeOpened(Message, frozen=True, kw_only=True):
    """A node may be used: everything its agent reported is in the ledger. Written by the allocator."""

    node: NodeName
    incarnation: Incarnation
    boot_id: str
    agent_run: RunId


class Grant(Message, frozen=True, kw_only=True):
    """The place is booked, and the agent shall make the slice (LAW 2: the ledger entry is the command)."""

    revision: int
    incarnation: Incarnation
    booking: Booking
    after: tuple[AllocationId, ...] = ()
    """Carried out only when these are gone."""
    adopted: bool = False
    """Written while opening the node, for a slice that its agent reported."""


class Revoke(Message, frozen=True, kw_only=True):
    """The agent shall unmake the slice. The place stays booked until the agent says `SliceGone`."""

    revision: int
    incarnation: Incarnation
    booking: Booking
    cause: str


class Closed(Message, frozen=True, kw_only=True):
    """The agent said `SliceGone`: the place is free. Kept for some hours only."""

    revision: int
    allocation: AllocationId
    request: RequestId
    node: NodeName
    cause: str


# -- answers ------------------------------------------------------------------------------------------------------


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """What one container must be told to use its devices."""

    container: str
    visible_devices: str
    """For NVIDIA_VISIBLE_DEVICES: UUIDs of MIG devices or GPUs, comma-separated."""
    memory_mib: int = 0


class Bound(Message, frozen=True, kw_only=True):
    """The request has its slice. Pods are pinned on this word, once."""

    request: RequestId
    request_revision: int
    allocation: AllocationId
    node: NodeName
    revision: int
    """+1 each time the strings change (a reboot makes the slice anew under another UUID and ticket)."""
    ticket: str
    containers: tuple[ContainerDevices, ...]
    slice_sequence: int = 0
    """Where in STATE the agent said so. An allocator that reads late must not put older strings over newer ones."""
    warnings: tuple[str, ...] = ()


class Refused(Message, frozen=True, kw_only=True):
    """No known model and no configured limit could ever satisfy the request."""

    request: RequestId
    request_revision: int
    refusal: Refusal


class Released(Message, frozen=True, kw_only=True):
    """Nothing is held for the request any more. Said after `SliceGone`, never before."""

    request: RequestId
    cause: str


class Pending(Message, frozen=True, kw_only=True):
    """Why a request waits: the first reason in a sentence, all of them counted."""

    request: RequestId
    request_revision: int
    message: str
    reasons: tuple[ReasonCount, ...]


class WaitOver(Message, frozen=True, kw_only=True):
    """The request waits no longer; its binding says how it ended."""

    request: RequestId


class EvictionOrdered(Message, frozen=True, kw_only=True):
    """The allocator wants a pod gone; its source shall evict it."""

    request: RequestId
    cause: str


class EvictionDone(Message, frozen=True, kw_only=True):
    """The pod was evicted."""

    request: RequestId


class EvictionBlocked(Message, frozen=True, kw_only=True):
    """The pod could not be evicted, and why."""

    request: RequestId
    why: str


# -- slices -------------------------------------------------------------------------------------------------------


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a slice as the agent sees it. `uuid` is the MIG device's, or the GPU's when granted whole."""

    gpu: GpuUuid
    profile: str | None
    start: int
    size: int
    uuid: str = ""


class SliceReady(Message, frozen=True, kw_only=True):
    """The slice exists, was read back, and its ticket directory is there."""

    allocation: AllocationId
    request: RequestId
    revision: int
    ticket: str
    devices: tuple[DeviceState, ...]
    containers: tuple[ContainerDevices, ...]


class SliceFailed(Message, frozen=True, kw_only=True):
    """The slice could not be made and nothing of it is left on the device. Frees nothing: only SliceGone does."""

    allocation: AllocationId
    request: RequestId
    revision: int
    error: str
    message: str


class SliceDegraded(Message, frozen=True, kw_only=True):
    """The slice was there and is not any more (reboot, lost GPU), and could not be made again."""

    allocation: AllocationId
    request: RequestId
    revision: int
    message: str


class SliceQuarantined(Message, frozen=True, kw_only=True):
    """The slice cannot be unmade: in use, or a tenant's process is left. Its place is out of the inventory."""

    allocation: AllocationId
    request: RequestId
    revision: int
    message: str
    holders: tuple[str, ...] = ()


class SliceGone(Message, frozen=True, kw_only=True):
    """The instance does not exist and no process of the tenant is left on the device. The only terminal word."""

    allocation: AllocationId
    request: RequestId
    revision: int
    cause: str
    closing: bool = False
    """Said after `Closed` was seen, with a TTL: the last word about this slice."""


# -- nodes --------------------------------------------------------------------------------------------------------


class GpuCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one GPU, as news."""

    uuid: GpuUuid
    model: str
    instances: int
    creatable: dict[str, int]
    """Per profile, how many more fit now. A sum of alternatives, never a capacity."""
    creatable_total: int


class NodeChanged(Message, frozen=True, kw_only=True):
    """News of one node: readable, but the pulled snapshot is the authority."""

    node: NodeName
    endpoint: str
    boot_id: str
    agent_run: RunId
    generation: int
    gpus: tuple[GpuCounts, ...]


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """A span of memory slices."""

    start: int
    size: int


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One profile as a GPU reports it. Engine counts: copy, decode, encode, JPEG, optical flow."""

    name: str
    profile_id: int
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    max_instances: int
    placements: tuple[PlacementReport, ...]


class InstanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU instance found on a device. `allocation` is None when it is foreign: reported, never touched."""

    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str = ""
    """Empty when it has no compute instance."""
    allocation: AllocationId | None = None


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its agent reports it."""

    uuid: GpuUuid
    index: int
    model: str
    memory_mib: int
    multiprocessors: int
    mig_enabled: bool
    memory_slices: int
    compute_slices: int
    profiles: tuple[ProfileReport, ...]
    instances: tuple[InstanceReport, ...]
    creatable: dict[str, int]
    healthy: bool = True
    health_message: str = ""
    quarantined: tuple[PlacementReport, ...] = ()


SliceState = Literal["planned", "making", "ready", "failed", "degraded", "unmaking", "quarantined"]


class SliceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an agent's journal that is not gone: what was ordered, and how far it is."""

    booking: Booking
    revision: int
    state: SliceState
    revoked: bool


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent knows of its node at one generation: NVML and journal. What inventory pulls."""

    node: NodeName
    boot_id: str
    agent_run: RunId
    generation: int
    driver_version: str
    gpus: tuple[GpuReport, ...]
    slices: tuple[SliceReport, ...]


class NodeInventory(Message, frozen=True, kw_only=True):
    """The pulled snapshot of one node, and whether it can still be trusted."""

    snapshot: NodeSnapshot
    stale: bool
    stale_message: str = ""
    observed_at: str = ""
    """UTC, for people."""


# -- operators and roles ------------------------------------------------------------------------------------------


class QuotaSet(Message, frozen=True, kw_only=True):
    """The limits of one namespace. None is unlimited, 0 blocks."""

    namespace: str
    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


class Cordoned(Message, frozen=True, kw_only=True):
    """What of one node not to use for new slices; no GPUs named means all of them."""

    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    why: str = ""


class Uncordoned(Message, frozen=True, kw_only=True):
    """The node may be used again."""

    node: NodeName


class LeaseHeld(Message, frozen=True, kw_only=True):
    """Who works in a role. Vanishes by TTL when not renewed."""

    role: str
    owner: RunId


AnyMessage = (
    AllocationRequested
    | RequestRejected
    | RequestWithdrawn
    | SourceSynced
    | HostFacts
    | NodeOpened
    | Grant
    | Revoke
    | Closed
    | Bound
    | Refused
    | Released
    | Pending
    | WaitOver
    | EvictionOrdered
    | EvictionDone
    | EvictionBlocked
    | SliceReady
    | SliceFailed
    | SliceDegraded
    | SliceQuarantined
    | SliceGone
    | NodeChanged
    | NodeInventory
    | QuotaSet
    | Cordoned
    | Uncordoned
    | LeaseHeld
)

SliceMessage = SliceReady | SliceFailed | SliceDegraded | SliceQuarantined | SliceGone
LedgerEntry = Grant | Revoke | Closed
RequestMessage = AllocationRequested | RequestRejected | RequestWithdrawn
BindingMessage = Bound | Refused | Released


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is on the wire around a message.

    `operation` names the guarded write and is the same over all its attempts; `id` names one attempt. `time` is
    information only: no decision uses another host's wall clock.
    """

    id: str
    operation: str
    request: str
    """The request this is about; empty for words about nodes and roles."""
    schema: int
    time: str
    message: AnyMessage
