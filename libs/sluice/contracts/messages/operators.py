"""What operators set, and the holders of roles."""

import msgspec

from sluice.contracts.ids import GpuUuid, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.messages.nodes import GpuReport
from sluice.contracts.messages.requests import HostRoom, Mode, Taint


class TemplateGpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`count` equal GPUs, as their agent would report one of them while it is empty."""

    report: GpuReport
    count: int = 1


class NodeTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new node of a pool, before anything runs on it but what every node runs."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Those that all its nodes have."""
    taints: tuple[Taint, ...] = ()
    room: HostRoom = HostRoom()
    """For pods with slices."""
    pods: int = 110
    gpus: tuple[TemplateGpus, ...] = ()
    modes: tuple[Mode, ...] = ("exclusive",)
    time_quota: bool = False
    kubelet_hands_over: bool = False


class PoolDemand(Message, frozen=True, kw_only=True):
    """How many more nodes of a pool would serve requests that wait. The pool is remembered while it has no node."""

    pool: str
    source: SourceName
    """Of the cluster whose pool it is."""
    selector: dict[str, str]
    """The node labels by which its autoscaler knows the pool."""
    template: NodeTemplate
    missing: int = 0


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits by dimension (None: open): devices; their memory; compute slices, or a device's part of them."""

    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


NO_AMOUNTS = Amounts()
BY_HAND = SourceName("")
"""The source of limits set at a console; any other source is the one whose limits file sets them."""


class QuotaSet(Message, frozen=True, kw_only=True):
    """The limits of a namespace. None is unlimited, 0 blocks."""

    namespace: str
    total: Amounts = NO_AMOUNTS
    """For all its pods together."""
    request: Amounts = NO_AMOUNTS
    """For each pod."""
    guaranteed: Amounts = NO_AMOUNTS
    """Pods of the namespace within this amount are not preempted for other namespaces."""
    priority_max: int | None = None
    """A higher priority of its pods counts as this one. None is no ceiling."""
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file sets it; empty when set by a person. A file retracts only its own limits."""


class QuotaUnset(Message, frozen=True, kw_only=True):
    """The namespace is unlimited again."""

    namespace: str
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file dropped it; empty when a person did."""


class Cordoned(Message, frozen=True, kw_only=True):
    """What of a node not to use for new slices; no GPUs means all."""

    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    why: str = ""
    drain: bool = False
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file sets it; empty when set by a person."""


class Uncordoned(Message, frozen=True, kw_only=True):
    """The node may be used again."""

    node: NodeName
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file dropped it; empty when a person did."""


class LeaseHeld(Message, frozen=True, kw_only=True):
    """The leader of a role. Expires unless renewed."""

    role: str
    owner: RunId
    endpoint: str = ""
    version: str = ""
    """Sluice version of the holder: for people, during a rolling update. Empty when unknown."""
