"""What `sluice gpus` prints: GPUs, what is on them, and nodes."""

from typing import Literal

from sluice.contracts.messages import Mode, Share
from sluice.contracts.messages.nodes import DaemonState
from sluice_console.core.documents.document import VERSION, Document

InstanceState = Literal["ready", "making", "ending", "quarantined", "foreign", "free", "unusable"]


class TenantDocument(Document, frozen=True, kw_only=True):
    """One share of a shared device: its pod and size."""

    allocation: str
    request: str
    owner: str
    """`namespace/name` of the pod."""
    state: InstanceState
    share: Share


class DaemonDocument(Document, frozen=True, kw_only=True):
    """The MPS daemon of a shared device, and the namespace and user it serves."""

    state: DaemonState
    """`fault`: it takes no new clients until those hit by a fault have ended. `down`: it died."""
    namespace: str
    uid: int
    """The trust domain of the shared device, with `namespace`."""
    device: str = ""
    """UUID of the GPU or MIG device that it serves; empty while that is being created."""
    pid: int = 0
    """On the node; 0 while it does not run."""
    clients: int = 0
    """Processes that its server serves now."""
    message: str = ""


class InstanceDocument(Document, frozen=True, kw_only=True):
    """
    One span of a GPU's memory slices that is taken or ordered.

    Of a fixed layout every instance is one: `free` if available, `unusable` if never offered.
    """

    profile: str
    """The MIG profile, or `whole GPU` for a GPU without MIG."""
    start: int
    size: int
    """In memory slices of the GPU."""
    state: InstanceState
    uuid: str = ""
    gi_id: int | None = None
    allocation: str = ""
    request: str = ""
    owner: str = ""
    """`namespace/name` of the pod; empty when the instance is foreign, or shared."""
    tenants: tuple[TenantDocument, ...] = ()
    """Pods that share it; empty for a pod's own."""
    daemon: DaemonDocument | None = None
    """Of a shared device, once its agent reports one."""
    out_of_use: bool = False
    """Quarantined: nothing new is placed here, present pods stay."""
    message: str = ""
    """Why an instance is `unusable`."""


class GpuDocument(Document, frozen=True, kw_only=True):
    """One GPU as the inventory knows it."""

    node: str
    uuid: str
    index: int
    model: str
    memory_mib: int
    memory_slices: int
    mig_enabled: bool
    healthy: bool
    health_message: str
    lost: bool = False
    """It does not answer, so its content is unknown. An otherwise unhealthy GPU gets no new slices."""
    fixed_layout: bool = False
    """An administrator owns its partitioning: existing instances are allocated, none is created or destroyed."""
    cordoned: bool = False
    """An operator cordoned it or its node: nothing new is placed there."""
    cordon_why: str = ""
    creatable: dict[str, int]
    """Per profile, how many more fit now; of a fixed layout, how many are available."""
    creatable_total: int
    """The sum of `creatable`: a sum of alternatives, never a capacity."""
    instances: tuple[InstanceDocument, ...]
    allocated_fraction: float
    """Memory slices in use over all memory slices, 0 to 1."""
    stale: bool
    """True if the inventory could not read this node for a while: the numbers may be old."""
    stale_message: str
    observed_at: str


class NodeDocument(Document, frozen=True, kw_only=True):
    """One node's facts from its agent, besides its GPUs."""

    node: str
    modes: tuple[Mode, ...]
    """How its agent can hand out devices."""
    driver_version: str
    toolkit_version: str
    """Of the NVIDIA container toolkit; empty if absent or unknown."""
    warnings: tuple[str, ...]
    """Warnings about the node as a whole."""
    stale: bool
    stale_message: str


class GpusDocument(Document, frozen=True, kw_only=True):
    """`sluice gpus --json`."""

    version: int = VERSION
    gpus: tuple[GpuDocument, ...]
    nodes: tuple[NodeDocument, ...] = ()
