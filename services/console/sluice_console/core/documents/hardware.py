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
    state: InstanceState
    share: Share


class DaemonDocument(Document, frozen=True, kw_only=True):
    """The MPS daemon of a shared device, and the namespace and user it serves."""

    state: DaemonState
    """`fault`: no new clients until the affected ones have ended. `down`: it died."""
    namespace: str
    uid: int
    """With `namespace`, the trust domain of the home."""
    device: str = ""
    """UUID of the GPU or MIG device; empty until it exists."""
    pid: int = 0
    """0 if it does not run."""
    clients: int = 0
    """Processes that its server serves."""
    message: str = ""


class InstanceDocument(Document, frozen=True, kw_only=True):
    """One span of a GPU's memory slices that is taken or ordered.

    Of a fixed layout every instance is one: `free` if available, `unusable` if never offered."""

    profile: str
    """Or `whole GPU`."""
    start: int
    size: int
    state: InstanceState
    uuid: str = ""
    gi_id: int | None = None
    allocation: str = ""
    request: str = ""
    owner: str = ""
    """Empty if foreign or shared."""
    tenants: tuple[TenantDocument, ...] = ()
    """Its shares."""
    daemon: DaemonDocument | None = None
    """Of a home of shares."""
    out_of_use: bool = False
    """Quarantined: nothing new is placed here."""
    message: str = ""
    """Why it is `unusable`."""


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
    """It does not answer; nothing is known of it. Otherwise an unhealthy GPU gets no new slices."""
    fixed_layout: bool = False
    """An administrator partitions it: nothing is created or destroyed."""
    cordoned: bool = False
    """Itself or its node: nothing new is placed there."""
    cordon_why: str = ""
    creatable: dict[str, int]
    """Per profile, how many more fit now; of a fixed layout, how many are free."""
    creatable_total: int
    """Sum of alternatives, not a capacity."""
    instances: tuple[InstanceDocument, ...]
    allocated_fraction: float
    """Memory slices in use, 0 to 1."""
    stale: bool
    """Its node could not be pulled: the numbers may be old."""
    stale_message: str
    observed_at: str


class NodeDocument(Document, frozen=True, kw_only=True):
    """One node's facts from its agent, besides its GPUs."""

    node: str
    modes: tuple[Mode, ...]
    """That its agent offers."""
    driver_version: str
    toolkit_version: str
    """NVIDIA container toolkit."""
    warnings: tuple[str, ...]
    """About the node as a whole."""
    stale: bool
    stale_message: str


class GpusDocument(Document, frozen=True, kw_only=True):
    """`sluice gpus --json`."""

    version: int = VERSION
    gpus: tuple[GpuDocument, ...]
    nodes: tuple[NodeDocument, ...] = ()
