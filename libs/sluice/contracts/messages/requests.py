"""What sources publish: requests, and nodes' resources besides GPUs."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.reasons import Refusal

Mode = Literal["exclusive", "mps", "fractional"]
"""How a device is granted: as an instance or whole; by a share of its memory; by a share of SMs, time and memory."""


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which GPUs may serve a claim, by (parts of) model names, and by UUID. An empty tuple is no constraint."""

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[GpuUuid, ...] = ()
    not_uuids: tuple[GpuUuid, ...] = ()


ANY_DEVICE = DeviceFilter()


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request of one container: `gpus` devices of one shape on one node.

    Any of `profile`, `sm_count`, `sm_percentage`, `memory_mib`, `memory_percentage`, `sm_partition` may be set; all set
    ones must hold. Without any, each device is a whole GPU. `shares_percent` is instead an amount over several devices:
    hundredths of a GPU, split as evenly as whole hundredths allow (then `gpus` is 1 and ignored)."""

    container: str
    gpus: int = 1
    modes: tuple[Mode, ...] = ("exclusive",)
    """In the order in which they are tried."""
    snug: bool = False
    """`auto`: exclusive only where it fits snugly, else a share."""
    profile: str | None = None
    sm_count: int | None = None
    sm_percentage: int | None = None
    """Of the SMs of the largest profile."""
    memory_mib: int | None = None
    memory_percentage: int | None = None
    """Share: of the GPU's memory; instance: of the largest profile's."""
    sm_partition: int | None = None
    """Percent of the GPU's SMs, for a fractional share."""
    quota_request_permille: int = 1000
    """Of each time window, guaranteed to a fractional share."""
    quota_limit_permille: int = 1000
    """Of each time window, at most."""
    shares_percent: int | None = None
    known_geometries: bool = False
    """Only profiles of configured geometries, by memory (HAMi's keys)."""
    only: DeviceFilter = ANY_DEVICE
    numa_bind: bool = False
    """All devices on one NUMA node."""
    uid: int | None = None
    """`runAsUser`; with the namespace, the trust domain of a share."""
    driver_capabilities: str = ""
    """NVIDIA_DRIVER_CAPABILITIES. Empty: implied by its devices. Does not restrict devices."""


class Toleration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Kubernetes toleration. An empty key with `Exists` tolerates everything, an empty effect every effect."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""


class NodeExpression(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One requirement on a node's labels, as in a Kubernetes node selector term."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class HostRoom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """CPU in thousandths of a core, memory in MiB, and extended resources by name."""

    cpu_milli: int = 0
    memory_mib: int = 0
    resources: dict[str, int] = msgspec.field(default_factory=dict)


Selector = tuple[NodeExpression, ...]
"""On labels: all must hold. Empty: every pod. An `In` without values, which no pod matches, stands for null."""
EVERY_NAMESPACE = "*"
"""In place of a name: pods of all namespaces. No real namespace has this name."""


class PodTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A required term of podAffinity or podAntiAffinity; `matchLabelKeys` and the pod's own namespace are resolved."""

    topology_key: str
    selector: Selector = ()
    namespaces: tuple[str, ...] = ()


class SpreadTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topology spread constraint with `DoNotSchedule`, over pods of the pod's own namespace."""

    topology_key: str
    max_skew: int = 1
    selector: Selector = ()
    min_domains: int = 1
    by_affinity: bool = True
    """Count only nodes that the pod's selector and node affinity admit (`nodeAffinityPolicy: Honor`)."""
    by_taints: bool = False
    """Count only nodes whose taints the pod tolerates (`nodeTaintsPolicy: Honor`)."""


class HostPort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of the node that a pod binds; without `ip` on all its addresses."""

    port: int
    protocol: str = "TCP"
    ip: str = ""


class HostNeeds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod needs of its node besides GPUs, so that it is pinned only where it can really run."""

    room: HostRoom = HostRoom()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: tuple[tuple[NodeExpression, ...], ...] = ()
    """Required node affinity: at least one term must hold completely."""
    tolerations: tuple[Toleration, ...] = ()
    beside: tuple[PodTerm, ...] = ()
    """Required podAffinity: only in domains with pods that all of these terms match."""
    apart: tuple[PodTerm, ...] = ()
    """Required podAntiAffinity: in no domain with a pod that one of these terms matches."""
    spread: tuple[SpreadTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volumes: tuple[tuple[Selector, ...], ...] = ()
    """Node affinity of its volumes: for each volume bound to some nodes, terms of which at least one must hold."""
    shun: tuple[NodeName, ...] = ()
    """Last resort: the scheduler recently failed to place pods of the same owner there."""


NO_NEEDS = HostNeeds()
Substitute = Literal["no", "stay", "return"]
"""Whether a larger compatible profile may serve: no; yes; yes, and the pod moves back when its own is available."""


class Leeway(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod's owner allows for the sake of other pods. Nothing by default."""

    preemptible: bool = False
    """It may be evicted for a request of higher priority."""
    movable: bool = False
    """It may be evicted and started again elsewhere, so that a large request fits."""
    substitute: Substitute = "no"
    idle_after_s: int | None = None
    """It may be evicted once its slice was idle so long; 0 is never. None: the default of its namespace."""
    idle_protected: str = ""
    """But not in these windows (`sluice.contracts.idle_rules`)."""


NO_LEEWAY = Leeway()


class PodGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A job of `size` pods that are granted together or not at all. `name` is unique within the namespace."""

    name: str
    size: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The binding that a source remembers. After a wipe, only this shows that a slice is on a node not adopted yet."""

    node: NodeName
    allocation: AllocationId


class ResourceClaimRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ResourceClaim that hands devices over. `requests`: its request -> `container` of the Claim with its devices."""

    uid: str
    name: str
    requests: dict[str, str]
    shared: bool = False
    """Whether it was not made for one pod: others may use it beside the one that asks."""


class AllocationRequested(Message, frozen=True, kw_only=True):
    """A pod asks: granted whole, on one node, or not at all."""

    revision: int
    source: SourceName
    namespace: str
    name: str
    origin: str
    """For people: a file, or `namespace/name`."""
    owner: str
    """The pod's UID: its processes must be gone before the slice is."""
    claims: tuple[Claim, ...]
    priority: int = 0
    host: HostNeeds = NO_NEEDS
    node_policy: str = ""
    """How to choose among nodes; empty is the pool's or the fleet's configured policy."""
    gpu_policy: str = ""
    """How to choose among the GPUs of a node; several, separated by commas, form a chain."""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None
    held: Held | None = None
    declined: AllocationId | None = None
    """An allocation that its source will not start the pod with: the pod waits for another one."""
    preempts: bool = True
    """Whether other pods may be evicted for it. False is Kubernetes' `preemptionPolicy: Never`: it only waits."""
    warnings: tuple[str, ...] = ()
    """Warnings to its owner about the request as written: sentences."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the pod: terms of other pods match them."""
    incarnation: Incarnation = Incarnation("")
    """Of STATE, as its source reads it: void in another one. Empty from an older writer."""
    resource_claims: tuple[ResourceClaimRef, ...] = ()
    """Its ResourceClaims: only a node whose kubelet can hand devices over serves them. Empty: by ticket and volume."""
    alternatives: tuple[tuple[Claim, ...], ...] = ()
    """Instead of `claims`, in this order, where the ones before cannot be granted now (`firstAvailable`)."""
    same_gpu: tuple[tuple[str, ...], ...] = ()
    """Containers whose devices must all be on one GPU, in groups (`matchAttribute` on a parent's UUID)."""


class RequestRejected(Message, frozen=True, kw_only=True):
    """The request cannot be parsed; the source itself refuses it."""

    revision: int
    source: SourceName
    origin: str
    namespace: str = ""
    name: str = ""
    refusal: Refusal


WithdrawCause = Literal["containers ended", "pod gone"]


class RequestWithdrawn(Message, frozen=True, kw_only=True):
    """Every container has ended, or the object is gone. Terminal."""

    revision: int
    source: SourceName
    cause: WithdrawCause
    held: Held | None = None
    closing: bool = False
    """Published after `Released` was seen, with a TTL: the last message about this request."""


class SourceSynced(Message, frozen=True, kw_only=True):
    """A source has published everything: `count` live requests, after its `epoch`-th full listing."""

    source: SourceName
    run: RunId
    epoch: int
    count: int
    incarnation: Incarnation = Incarnation("")
    """Of STATE, which holds all of it. In another one it proves nothing. Empty from an older writer."""


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class OtherPods(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Equal pods on a node that are not ours: their labels, and the pods they must be apart from."""

    namespace: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    apart: tuple[PodTerm, ...] = ()
    count: int = 1
    leaving: bool = False
    """They are being deleted: spreading does not count them any more."""


class HostFacts(Message, frozen=True, kw_only=True):
    """Allocatable of a node besides GPUs, less pods without slices. The allocator subtracts those with slices."""

    cpu_cores: float
    memory_mib: int
    pods_free: int
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ports: tuple[HostPort, ...] = ()
    others: tuple[OtherPods, ...] = ()
    """Other pods that matter to our requests: a term matches them, or they must be apart from pods."""
    source: SourceName = SourceName("")
    """The source that reports the node, when several clusters share a bus. Empty when unknown."""
    allocatable: HostRoom | None = None
    """The node's total for all pods, the upper bound for any one pod. None from an older writer."""

    @property
    def is_of_no_object(self) -> bool:
        """Whether its source reports that the node's Node object is missing, so that nothing fits there."""
        room = self.cpu_cores or self.memory_mib or self.pods_free or self.resources or self.labels
        return self.cordoned and not room and self.allocatable is None
