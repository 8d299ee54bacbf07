"""
What `--json` prints: the shapes that scripts may rely on. Described field by field in docs/json.md.

A field may be added; none changes its meaning within one `version`.
"""

from typing import Literal

import msgspec

from sluice.contracts.messages import Claim, ContainerDevices, DeviceGrant, Mode, Share
from sluice.contracts.messages.nodes import DaemonState
from sluice.contracts.refusals import ReasonCount, Refusal

VERSION = 1


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What every printed document is."""


InstanceState = Literal["ready", "making", "ending", "quarantined", "foreign", "free", "unusable"]


class TenantDocument(Document, frozen=True, kw_only=True):
    """One share of a home: who has it, and how much."""

    allocation: str
    request: str
    owner: str
    """`namespace/name` of the pod."""
    state: InstanceState
    share: Share


class DaemonDocument(Document, frozen=True, kw_only=True):
    """The MPS daemon of a home, and whom it serves."""

    state: DaemonState
    """`fault`: it takes no new clients until those hit by a fault have ended. `down`: it died."""
    namespace: str
    uid: int
    """The trust domain of the home, with `namespace`."""
    device: str = ""
    """UUID of the GPU or MIG device that it serves; empty while that is being made."""
    pid: int = 0
    """On the node; 0 while it does not run."""
    clients: int = 0
    """Processes that its server serves now."""
    message: str = ""


class InstanceDocument(Document, frozen=True, kw_only=True):
    """
    One span of a GPU's memory slices that is taken (or ordered).

    Of a fixed layout every instance is one: `free` when it can be had, `unusable` when it is offered to nobody.
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
    """Who shares it; empty when it is one pod's own."""
    daemon: DaemonDocument | None = None
    """Of a home of shares, as soon as its agent tells of one."""
    out_of_use: bool = False
    """Quarantined: nothing new is placed here, whoever is here stays."""
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
    """It does not answer at all: nobody knows what is on it. Otherwise an unhealthy GPU gets no new slices."""
    fixed_layout: bool = False
    """An administrator owns its partitioning: what is there is handed out, and nothing is made or destroyed."""
    cordoned: bool = False
    """An operator said not to use it, or its node: nothing new comes there, whatever fits."""
    cordon_why: str = ""
    creatable: dict[str, int]
    """Per profile, how many more fit now; of a fixed layout, how many can be had."""
    creatable_total: int
    """The sum of `creatable`: a sum of alternatives, never a capacity."""
    instances: tuple[InstanceDocument, ...]
    allocated_fraction: float
    """Memory slices in use over all memory slices, 0 to 1."""
    stale: bool
    """True when the inventory could not pull this node for a while: the numbers may be old."""
    stale_message: str
    observed_at: str


class NodeDocument(Document, frozen=True, kw_only=True):
    """One node as its agent tells of it, besides its GPUs."""

    node: str
    modes: tuple[Mode, ...]
    """How its agent can hand out devices."""
    driver_version: str
    toolkit_version: str
    """Of the NVIDIA container toolkit; empty when there is none or it is not known."""
    warnings: tuple[str, ...]
    """What people must know of the node as a whole."""
    stale: bool
    stale_message: str


class GpusDocument(Document, frozen=True, kw_only=True):
    """`sluice gpus --json`."""

    version: int = VERSION
    gpus: tuple[GpuDocument, ...]
    nodes: tuple[NodeDocument, ...] = ()


PodState = Literal["requested", "waiting", "making", "bound", "refused", "ending", "ended"]


class PodDocument(Document, frozen=True, kw_only=True):
    """One request for slices and what became of it."""

    request: str
    namespace: str
    name: str
    origin: str
    """The manifest file, or `namespace/name` in a cluster."""
    source: str
    state: PodState
    message: str
    """The state in one sentence."""
    revision: int
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    reasons: tuple[ReasonCount, ...] = ()
    """Why it waits, counted."""
    node: str = ""
    allocation: str = ""
    ticket: str = ""
    devices: tuple[DeviceGrant, ...] = ()
    """What is booked for it: places, or shares in them."""
    containers: tuple[ContainerDevices, ...] = ()
    """What each container is told; a share's MPS directories, thread percentage and memory limit among it."""
    warnings: tuple[str, ...] = ()
    """What its user must know: a daemon that died under it, a device that no process of it can use."""


class PodsDocument(Document, frozen=True, kw_only=True):
    """`sluice pods --json`."""

    version: int = VERSION
    pods: tuple[PodDocument, ...]


class StepDocument(Document, frozen=True, kw_only=True):
    """One thing that happened to a request."""

    time: str
    """UTC, ISO 8601; empty when only the last value is known."""
    subject: str
    type: str
    text: str


Filter = Literal["nodes", "devices", "room", "together", "turn"]
"""
Which nodes may be used; which GPUs could serve it; where there is room now; all of it on one node; whose turn it is.
"""


class OutDocument(Document, frozen=True, kw_only=True):
    """One filter of the search, and what was out there."""

    filter: Filter
    reasons: tuple[ReasonCount, ...]


class MovedPodDocument(Document, frozen=True, kw_only=True):
    """A movable pod that is in the way, and where it would go: one restart."""

    namespace: str
    name: str
    from_node: str
    to_node: str
    memory_mib: int
    rested: bool
    """Whether it has stayed long enough where it is to be moved now."""


class ProposalDocument(Document, frozen=True, kw_only=True):
    """Where a request that waits would fit if movable pods made room."""

    node: str
    moves: tuple[MovedPodDocument, ...]
    gains_mib: int
    """Of the request's devices."""
    moves_mib: int
    """Of the pods that would be moved."""
    is_done: bool
    """Whether the allocator does so by itself as soon as it may; otherwise it only says so."""


class StandingDocument(Document, frozen=True, kw_only=True):
    """How a request that lives stands in the allocator at this moment, as it says itself."""

    state: str
    message: str
    before: int = 0
    """Requests of the same shape that are tried before it, while it waits."""
    waiting: int = 0
    """Requests that wait, of all shapes, while it waits."""
    steps: tuple[OutDocument, ...] = ()
    """Why no place is free now, filter by filter."""
    more: int = 0
    """Reasons that `steps` does not list."""
    proposal: ProposalDocument | None = None
    """While it waits: who could be moved so that it fits."""


class EarlierDocument(Document, frozen=True, kw_only=True):
    """The request of a pod of this name that was evicted before this one asked."""

    request: str
    cause: str
    """Why it was evicted; empty when the history does not know any more."""


class StoryDocument(Document, frozen=True, kw_only=True):
    """`sluice explain REQUEST --json`."""

    version: int = VERSION
    pod: PodDocument
    earlier: EarlierDocument | None = None
    """None when no request of this name was evicted just before."""
    steps: tuple[StepDocument, ...]
    standing: StandingDocument | None = None
    """None when it has ended, or when no allocator answers."""


SimulatedAnswer = Literal["bound", "pending", "refused", "nothing"]
"""Would be bound now; would wait; could never be served; asks for nothing of Sluice."""


class SimulatedDeviceDocument(Document, frozen=True, kw_only=True):
    """One device that a pod would get."""

    container: str
    gpu: str
    model: str
    mode: str
    profile: str | None
    """The MIG profile; null for a whole GPU."""
    start: int
    size: int
    """In memory slices of the GPU."""
    memory_mib: int
    """Of the instance, of the whole GPU, or of the share."""
    sm_percent: int
    """Of the largest profile's SMs for an instance; of the GPU's for a share (100 where it has no bound)."""
    share: Share | None = None


class HomeDocument(Document, frozen=True, kw_only=True):
    """A home of shares, with the new ones in it."""

    profile: str | None
    start: int
    size: int
    memory_mib: int
    memory_free_mib: int
    sm_percent: int
    """Of the GPU."""
    sm_percent_free: int
    tenants: int
    tenants_max: int


class LeftDocument(Document, frozen=True, kw_only=True):
    """What one GPU would still allow: per profile how many more fit, alternatives to one another."""

    gpu: str
    creatable_before: dict[str, int]
    creatable_after: dict[str, int]
    homes: tuple[HomeDocument, ...]


class EvictedDocument(Document, frozen=True, kw_only=True):
    """A pod that has to go before a place is free."""

    namespace: str
    name: str
    priority: int
    memory_mib: int
    """Of all its devices."""


class SimulatedPodDocument(Document, frozen=True, kw_only=True):
    """What would become of one pod if it asked now, alone."""

    namespace: str
    name: str
    origin: str
    answer: SimulatedAnswer
    message: str
    node: str = ""
    devices: tuple[SimulatedDeviceDocument, ...] = ()
    left: tuple[LeftDocument, ...] = ()
    """Empty where others have to be evicted first."""
    evicts: tuple[EvictedDocument, ...] = ()
    """Whose place it is: they are evicted first, the least important first. Empty where it is free."""
    steps: tuple[OutDocument, ...] = ()
    """Why it waits; or, when it would be bound, why other places would not do."""
    more: int = 0
    """Reasons that `steps` does not list."""
    refusal: Refusal | None = None


class AmountsDocument(Document, frozen=True, kw_only=True):
    """So much of each dimension; null where nothing is said of it."""

    gpus: int | None = None
    """Devices: an instance, a share and a whole GPU are one each."""
    memory_mib: int | None = None
    compute_slices: float | None = None
    """Of a share its part of the GPU's, in thousandths."""


class QuotaDocument(Document, frozen=True, kw_only=True):
    """What one namespace has, and may have."""

    namespace: str
    limited: bool
    """Whether an operator has said anything of it."""
    source: str = ""
    """The pod-watcher whose limits file says so; empty where a person did, or nobody."""
    used: AmountsDocument
    """What is booked for its pods, until it is gone."""
    total: AmountsDocument
    """The limits of all its pods together; null is unlimited."""
    request: AmountsDocument
    """The limits of one pod."""
    guaranteed: AmountsDocument
    """What no pod of another namespace takes from it by preemption."""


class QuotasDocument(Document, frozen=True, kw_only=True):
    """`sluice quota list --json`."""

    version: int = VERSION
    quotas: tuple[QuotaDocument, ...]


class DrainedPodDocument(Document, frozen=True, kw_only=True):
    """One pod on what is cordoned or drained."""

    request: str
    namespace: str
    name: str
    state: str
    """`running`, `granted`, `ordered` (to be evicted), `blocked` (its eviction is refused), `evicted`, `ending`."""
    message: str = ""


class CordonDocument(Document, frozen=True, kw_only=True):
    """`sluice cordon`, `uncordon` and `drain` with `--json`: what holds of a node afterwards."""

    version: int = VERSION
    node: str
    cordoned: bool
    gpus: tuple[str, ...] = ()
    """UUIDs; none named means the whole node."""
    why: str = ""
    drain: bool = False
    pods: tuple[DrainedPodDocument, ...] = ()
    """Who is still there."""


class AdjustedFieldDocument(Document, frozen=True, kw_only=True):
    """One field of a share. Memory in MiB, SMs in percent of the GPU's, time in thousandths of each window."""

    field: str
    before: int
    after: int
    effect: str
    """`unchanged`, `now`, or `next process start`: processes that run keep what they began with."""


class FittingDocument(Document, frozen=True, kw_only=True):
    """The most that one field could be now, the others left as they are."""

    field: str
    value: int


class AdjustDocument(Document, frozen=True, kw_only=True):
    """`sluice adjust POD --json`."""

    version: int = VERSION
    request: str
    name: str
    outcome: str
    """`adjusted`, `would be adjusted` or `refused`."""
    dry_run: bool
    container: str = ""
    node: str = ""
    allocation: str = ""
    revision: int = 0
    """Of the allocation; of a dry run, the one that it would get."""
    fields: tuple[AdjustedFieldDocument, ...] = ()
    reason: str = ""
    """Of a refusal: `InvalidValue`, `NotFound`, `NotBound`, `NotAShare`, `Unchanged`, `CapacityExceeded`,
    `QuotaExceeded` or `NotNow`."""
    message: str = ""
    field: str = ""
    most: tuple[FittingDocument, ...] = ()
    under_way: bool = False
    """`Unchanged`: it is booked so, and its node agent has not carried it out yet."""


class SimulatedDocument(Document, frozen=True, kw_only=True):
    """`sluice simulate -f FILE --json`."""

    version: int = VERSION
    pods: tuple[SimulatedPodDocument, ...]
