"""What sources say: who asks for what, and what a node has besides GPUs."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.reasons import Refusal

Mode = Literal["exclusive", "mps", "fractional"]
"""How a device is had: a MIG instance or a whole GPU of one's own; a share of memory beside others of the same trust
domain; a share of SMs, of time and of memory."""


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Which GPUs may serve a claim. An empty tuple is no constraint.

    `models` and `not_models` name models or parts of product names; UUIDs are compared exactly.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[GpuUuid, ...] = ()
    not_uuids: tuple[GpuUuid, ...] = ()


ANY_DEVICE = DeviceFilter()


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What one container asks for: `gpus` devices of one shape on one node.

    Of `profile`, `sm_count`, `sm_percentage`, `memory_mib`, `memory_percentage`, `sm_partition` any may be set; all
    that are set must hold. None set means a whole GPU each. `shares_percent` is an amount over several devices
    instead: hundredths of a GPU, split as evenly as whole hundredths allow (then `gpus` is 1 and says nothing).
    """

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
    """NVIDIA_DRIVER_CAPABILITIES. Empty: what its devices imply. Says nothing of the devices."""


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
    """CPU in thousandths of a core, memory in MiB, and countable resources of the user's own (by name)."""

    cpu_milli: int = 0
    memory_mib: int = 0
    resources: dict[str, int] = msgspec.field(default_factory=dict)


Selector = tuple[NodeExpression, ...]
"""On labels: all must hold. Empty: every pod. An `In` without values, which nothing holds, stands for null."""
EVERY_NAMESPACE = "*"
"""In place of a name: pods of all namespaces. No namespace has this name."""


class PodTerm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A required term of podAffinity or podAntiAffinity: pods by namespace and labels, and the node label that says how
    far it reaches. `matchLabelKeys` and the pod's own namespace are resolved by who reads the pod.
    """

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
    """Only nodes count that the pod's selector and node affinity admit (`nodeAffinityPolicy: Honor`)."""
    by_taints: bool = False
    """Only nodes count whose taints the pod tolerates (`nodeTaintsPolicy: Honor`)."""


class HostPort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of the node that a pod binds; without `ip` on all its addresses."""

    port: int
    protocol: str = "TCP"
    ip: str = ""


class HostNeeds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod needs of its node besides GPUs, so that it is pinned only where it can really run."""

    room: HostRoom = HostRoom()
    node_name: str = ""
    """This node or none."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: tuple[tuple[NodeExpression, ...], ...] = ()
    """Required node affinity: of the terms at least one must hold whole."""
    tolerations: tuple[Toleration, ...] = ()
    beside: tuple[PodTerm, ...] = ()
    """Required podAffinity: only in domains where pods run that all of these terms match."""
    apart: tuple[PodTerm, ...] = ()
    """Required podAntiAffinity: in no domain where a pod runs that one of these terms matches."""
    spread: tuple[SpreadTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volumes: tuple[tuple[Selector, ...], ...] = ()
    """Where its volumes are: for each that is bound to some nodes, terms of which at least one must hold whole."""
    shun: tuple[NodeName, ...] = ()
    """Only where there is nothing else: the scheduler could not place pods of the same owner there a while ago."""


NO_NEEDS = HostNeeds()


Substitute = Literal["no", "stay", "return"]
"""Whether a larger compatible profile may serve: no; yes; yes, and the pod is moved back when its own is to be had."""


class Leeway(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod lets be done with it for the sake of others. Nothing, unless its owner says so."""

    preemptible: bool = False
    """It may be evicted for a request of higher priority."""
    movable: bool = False
    """It may be evicted to be started again elsewhere, so that a large request fits."""
    substitute: Substitute = "no"


NO_LEEWAY = Leeway()


class PodGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A job of `size` pods that are granted together or not at all. `name` is unique within the namespace."""

    name: str
    size: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a request is bound to, as its source remembers it.

    After the broker was wiped nothing else tells that a running pod's slice is on a node that has not been opened yet;
    the request must wait for that node instead of being given a second slice.
    """

    node: NodeName
    allocation: AllocationId


class AllocationRequested(Message, frozen=True, kw_only=True):
    """A pod asks: granted whole, on one node, or not at all."""

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
    host: HostNeeds = NO_NEEDS
    node_policy: str = ""
    """How to choose among nodes; empty is what the pool or the fleet is configured to."""
    gpu_policy: str = ""
    """How to choose among the GPUs of a node; several, separated by commas, are a chain."""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None
    held: Held | None = None
    declined: AllocationId | None = None
    """What its source will not start the pod with, though it is bound to it: the pod waits for another one."""
    preempts: bool = True
    """Whether others may be evicted for it. False is Kubernetes' `preemptionPolicy: Never`: it only waits."""
    warnings: tuple[str, ...] = ()
    """What its source took as it was written, and its owner should know: sentences."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the pod: what terms of other pods match."""
    incarnation: Incarnation = Incarnation("")
    """
    Of STATE, as its source reads it. In another life it has landed late, and does not say what its source remembers by
    then. Empty: its writer did not say.
    """


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
    """Said after `Released` was seen, with a TTL: the last word about this request."""


class SourceSynced(Message, frozen=True, kw_only=True):
    """A source has published everything: `count` live requests, after its `epoch`-th full listing."""

    source: SourceName
    run: RunId
    epoch: int
    count: int
    incarnation: Incarnation = Incarnation("")
    """Of STATE, on which all of it is. In another life nothing is concluded from it. Empty: its writer did not say."""


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class OtherPods(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pods on a node that are none of ours and alike: what they are matched by, and whom they want apart from them."""

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
    """Countable resources of the user's own, by name."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ports: tuple[HostPort, ...] = ()
    """Those that others' pods bind."""
    others: tuple[OtherPods, ...] = ()
    """Those of others' pods that matter to requests of ours: matched by a term of one, or wanting pods apart."""
    source: SourceName = SourceName("")
    """Who says so: whose node it is, when several clusters share a bus. Empty: not known."""
    allocatable: HostRoom | None = None
    """What it offers all pods together: what no pod can have more of, whoever leaves. None: its writer did not say."""
