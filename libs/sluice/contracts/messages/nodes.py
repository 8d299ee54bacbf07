"""What nodes have: news, and the snapshot that inventory pulls."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RunId
from sluice.contracts.messages.base import Message, SpanSize, SpanStart
from sluice.contracts.messages.ledger import Booking, DeviceGrant
from sluice.contracts.messages.requests import Mode

MPS_CLIENTS_MAX = 48
"""Where nothing else is known (NVIDIA MPS documentation: 48 since Volta, 60 with CUDA 13.1 and later)."""


class GpuCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one GPU, as news."""

    uuid: GpuUuid
    model: str
    instances: int
    creatable: dict[str, int]
    """Per profile, how many more fit now. A sum of alternatives, never a capacity."""
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
    """Of Sluice, as the agent runs it: for people, while versions are mixed. Empty: not known."""


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
    """
    One GPU instance found on a device.

    `allocation` is None when nobody of ours has it: on a GPU with a fixed layout it can be had then, on any other it is
    foreign; reported, never touched.
    """

    gi_id: int
    profile: str
    start: SpanStart
    size: SpanSize
    uuid: str = ""
    """Empty when it has no compute instance."""
    allocation: AllocationId | None = None
    unusable: str = ""
    """Of a GPU with a fixed layout: why nobody is given it now, in a sentence; empty when it can be had."""


DaemonState = Literal["starting", "ready", "fault", "down", "stopping"]
"""`fault`: the MPS server refuses new clients until those hit by the fault have ended. `down`: it died."""


class MpsDaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The MPS daemon of one home of shares: a whole GPU (`profile` is None) or an instance."""

    profile: str | None
    start: SpanStart
    size: SpanSize
    device: str
    """UUID of the GPU or MIG device that it serves; empty while that is being made."""
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
    """0 where the driver does not tell it (a GPU that has the machine's memory, as GB10): then it is given whole."""
    multiprocessors: int
    """0 where nothing tells it."""
    mig_enabled: bool
    memory_slices: SpanSize
    compute_slices: SpanSize
    profiles: tuple[ProfileReport, ...]
    instances: tuple[InstanceReport, ...]
    creatable: dict[str, int]
    healthy: bool = True
    health_message: str = ""
    lost: bool = False
    """It does not answer at all (so it is not healthy either): nobody knows what is on it."""
    quarantined: tuple[PlacementReport, ...] = ()
    numa_node: int | None = None
    links: dict[GpuUuid, int] = msgspec.field(default_factory=dict)
    """How close other GPUs of the node are, by UUID: larger is closer, 100 per NVLink; empty when not known."""
    mps_clients_max: int = MPS_CLIENTS_MAX
    """Processes that one MPS server serves at most."""
    daemons: tuple[MpsDaemonReport, ...] = ()
    """By start."""
    fixed_layout: bool = False
    """An administrator owns its partitioning: instances that are there are handed out, none is made or destroyed."""


SliceState = Literal["planned", "making", "ready", "failed", "degraded", "unmaking", "quarantined"]


class SliceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an agent's journal that is not gone: what was ordered, and how far it is."""

    booking: Booking
    revision: int
    state: SliceState
    revoked: bool
    after: tuple[AllocationId, ...] = ()
    """As its Grant said: it is made when these are gone, ..."""
    evict: bool = False
    """... whose pods are evicted for it."""
    counts: tuple[DeviceGrant, ...] = ()
    """As its Grant said: what it counts until it is as small as ordered."""


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an agent knows of its node at one generation: NVML and journal. What inventory pulls."""

    node: NodeName
    boot_id: str
    agent_run: RunId
    generation: int
    driver_version: str
    gpus: tuple[GpuReport, ...]
    slices: tuple[SliceReport, ...]
    modes: tuple[Mode, ...] = ("exclusive",)
    """How this agent can hand out devices."""
    time_quota: bool = False
    """Whether time quotas are enforced, so that fractional shares may take turns on the same SMs."""
    toolkit_version: str = ""
    """Of the NVIDIA container toolkit; empty when there is none or it is not known."""
    warnings: tuple[str, ...] = ()
    """What people must know of this node as a whole, in sentences (a journal that was lost, say)."""
    doubtful_tickets: tuple[str, ...] = ()
    """Tickets that an agent without a journal cannot believe, although somebody may be using what they were made for.
    Each names its allocation (`sluice.contracts.ticket_names`)."""


class NodeInventory(Message, frozen=True, kw_only=True):
    """The pulled snapshot of a node, and whether it can still be trusted."""

    snapshot: NodeSnapshot
    stale: bool
    stale_message: str = ""
    observed_at: str = ""
    """UTC, for people."""
    removed: bool = False
    """Said once after `NodeRemoved`, with a TTL: the last word about this node."""
    incarnation: Incarnation = Incarnation("")
    """Of STATE, when the pull began: what was pulled in another life opens no node. Empty: its writer did not say."""
