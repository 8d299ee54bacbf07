"""What operators set, and the holders of roles."""

import msgspec

from sluice.contracts.ids import GpuUuid, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Limits by dimension, or guarantees. None leaves a dimension open.

    `gpus` counts devices (an instance, a share and a whole GPU are one each), `memory_mib` their memory, and
    `compute_slices` the compute slices of instances; a device that is not an instance counts its part of the GPU's.
    """

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
    """Evict the pods there, too."""
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
    """Its gRPC address; empty when it serves none."""
    version: str = ""
    """Sluice version of the holder: for people, during a rolling update. Empty when unknown."""
