"""What nodes have: announcements, and the snapshot that inventory pulls."""

from typing import Literal, NamedTuple

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RequestId, RunId
from sluice.contracts.messages.answers import ContainerDevices
from sluice.contracts.messages.base import Message, SpanSize, SpanStart
from sluice.contracts.messages.ledger import Booking, DeviceGrant
from sluice.contracts.messages.requests import Mode


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a slice as the agent sees it. `uuid` is the MIG device's, or the GPU's when granted whole."""

    gpu: GpuUuid
    profile: str | None
    start: SpanStart
    size: SpanSize
    uuid: str = ""


class _SliceStatus(Message, frozen=True, kw_only=True):
    allocation: AllocationId
    request: RequestId
    revision: int


class SliceReady(_SliceStatus, frozen=True, kw_only=True):
    """The slice exists, was read back, and has its ticket directory."""

    ticket: str
    devices: tuple[DeviceState, ...]
    containers: tuple[ContainerDevices, ...]
    warnings: tuple[str, ...] = ()
    """Warnings to its user, in sentences: an MPS daemon that restarted, a client that waits."""
    shrinking: bool = False
    """It was made smaller, and older processes still use the former size: it counts as before."""


class SliceFailed(_SliceStatus, frozen=True, kw_only=True):
    """The slice could not be created, and nothing of it is left. Frees nothing: only `SliceGone` does."""

    error: str
    message: str
    shrinking: bool = True
    """As in `SliceDegraded`."""


class SliceDegraded(_SliceStatus, frozen=True, kw_only=True):
    """The slice is lost (reboot, lost GPU) and could not be recreated, or its GPU does not answer."""

    message: str
    shrinking: bool = True
    """As in `SliceReady`; also while new sizes do not hold yet. Unknown from an older agent: it counts as before."""


class SliceQuarantined(_SliceStatus, frozen=True, kw_only=True):
    """The slice cannot be destroyed: it is in use. Its place is out of use."""

    message: str
    holders: tuple[str, ...] = ()


class SliceGone(_SliceStatus, frozen=True, kw_only=True):
    """The instance does not exist, and no process of the tenant is left. The only terminal status."""

    cause: str
    closing: bool = False
    """Published after `Closed` was seen, with a TTL: the last message about this slice."""


MPS_CLIENTS_MAX = 48
"""The default limit (NVIDIA MPS documentation: 48 since Volta, 60 with CUDA 13.1 and later)."""


class AgentAddress(NamedTuple):
    """Where an agent is asked over gRPC, and the certificate that it must have; empty: one of our authorities'."""

    endpoint: str
    certificate: str = ""


class GpuCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one GPU in an announcement."""

    uuid: GpuUuid
    model: str
    instances: int
    creatable: dict[str, int]
    """Per profile, how many more fit now. These are alternatives, never a capacity."""
    creatable_total: int


class NodeChanged(Message, frozen=True, kw_only=True):
    """A node has changed. The pulled snapshot is the authority."""

    node: NodeName
    endpoint: str
    boot_id: str
    agent_run: RunId
    generation: int
    gpus: tuple[GpuCounts, ...]
    version: str = ""
    """Sluice version of the agent: for people, during a rolling update. Empty when unknown."""
    certificate: str = ""
    """The agent's own certificate for gRPC (PEM), which callers must trust alone; empty: one of their authorities'."""

    @property
    def address(self) -> AgentAddress:
        return AgentAddress(self.endpoint, self.certificate)


class NodeRemoved(Message, frozen=True, kw_only=True):
    """A node is gone. Replaces its agent's last status, with a TTL; any later status of the agent undoes it."""

    node: NodeName
    cause: str


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """A span of memory slices."""

    start: SpanStart
    size: SpanSize


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One profile as a GPU reports it. Engine counts: copy, decode, encode, JPEG, optical flow."""

    name: str
    profile_id: int
    compute_slices: SpanSize
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
    """One GPU instance found. Without `allocation` it can be granted in a fixed layout, and is foreign elsewhere."""

    gi_id: int
    profile: str
    start: SpanStart
    size: SpanSize
    uuid: str = ""
    """Empty without a compute instance."""
    allocation: AllocationId | None = None
    unusable: str = ""
    """On a GPU with a fixed layout: why it cannot be granted now, in a sentence; empty when it can."""


DaemonState = Literal["starting", "ready", "fault", "down", "stopping"]
"""`fault`: the MPS server refuses new clients until those hit by the fault have ended. `down`: it died."""


class MpsDaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The MPS daemon of one shared device: a whole GPU (`profile` is None) or an instance."""

    profile: str | None
    start: SpanStart
    size: SpanSize
    device: str
    """UUID of the GPU or MIG device that it serves; empty while that is being created."""
    namespace: str
    uid: int
    state: DaemonState
    pid: int = 0
    clients: int = 0
    message: str = ""


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its agent reports it."""

    uuid: GpuUuid
    index: int
    model: str
    memory_mib: int
    """0 where the driver does not report it (GB10 shares the machine's memory): then it is only granted whole."""
    multiprocessors: int
    """0 when unknown."""
    mig_enabled: bool
    memory_slices: SpanSize
    compute_slices: SpanSize
    profiles: tuple[ProfileReport, ...]
    instances: tuple[InstanceReport, ...]
    creatable: dict[str, int]
    healthy: bool = True
    health_message: str = ""
    lost: bool = False
    """The GPU does not answer (so it is unhealthy too): what is on it is unknown."""
    quarantined: tuple[PlacementReport, ...] = ()
    numa_node: int | None = None
    links: dict[GpuUuid, int] = msgspec.field(default_factory=dict)
    """Closeness to other GPUs of the node, by UUID: larger is closer, 100 per NVLink; empty when unknown."""
    mps_clients_max: int = MPS_CLIENTS_MAX
    daemons: tuple[MpsDaemonReport, ...] = ()
    fixed_layout: bool = False
    """An administrator owns its partitioning: existing instances are granted, none is created or destroyed."""


SliceState = Literal["planned", "making", "ready", "failed", "degraded", "unmaking", "quarantined"]


class SliceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an agent's journal that is not gone: its order and its progress."""

    booking: Booking
    revision: int
    state: SliceState
    revoked: bool
    after: tuple[AllocationId, ...] = ()
    """As in its Grant: it is created when these are gone, ..."""
    evict: bool = False
    """... and whether their pods are evicted for it."""
    counts: tuple[DeviceGrant, ...] = ()
    """As in its Grant: what it counts until it is as small as ordered."""
    idle_since: int = 0
    """Unix seconds since when nothing has used it; 0: it is used, or that is unknown. Restarts with the agent."""


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent knows of its node at one generation, from NVML and its journal. Inventory pulls it."""

    node: NodeName
    boot_id: str
    agent_run: RunId
    generation: int
    driver_version: str
    gpus: tuple[GpuReport, ...]
    slices: tuple[SliceReport, ...]
    modes: tuple[Mode, ...] = ("exclusive",)
    time_quota: bool = False
    """Whether time quotas are enforced, so that fractional shares may take turns on the same SMs."""
    toolkit_version: str = ""
    """Of the NVIDIA container toolkit; empty when missing or unknown."""
    warnings: tuple[str, ...] = ()
    """Warnings about the node as a whole, in sentences (a lost journal, for instance)."""
    kubelet_hands_over: bool = False
    """Whether its kubelet hands devices over by ResourceClaim: the agent's DRA plugin is registered, and CDI works."""
    doubtful_tickets: tuple[str, ...] = ()
    """Tickets, perhaps in use, that an agent without a journal cannot verify; each names its allocation."""


class NodeInventory(Message, frozen=True, kw_only=True):
    """The pulled snapshot of a node, and whether it can still be trusted."""

    snapshot: NodeSnapshot
    stale: bool
    stale_message: str = ""
    observed_at: str = ""
    """UTC, for people."""
    removed: bool = False
    """Published once after `NodeRemoved`, with a TTL: the last message about this node."""
    incarnation: Incarnation = Incarnation("")
    """Of STATE, when the pull began: void in another one. Empty from an older writer."""
