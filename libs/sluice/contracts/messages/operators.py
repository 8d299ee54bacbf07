"""What operators set, and who works in a role."""

import msgspec

from sluice.contracts.ids import GpuUuid, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Limits by dimension, or guarantees. None says nothing of a dimension.

    `gpus` counts devices (an instance, a share and a whole GPU are one each), `memory_mib` what they have, and
    `compute_slices` the compute slices of instances; of a device that is no instance, its part of the GPU's.
    """

    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


NO_AMOUNTS = Amounts()
BY_HAND = SourceName("")
"""The source of a word that a person said at a console; every other one is the source whose limits file says it."""


class QuotaSet(Message, frozen=True, kw_only=True):
    """The limits of a namespace. None is unlimited, 0 blocks."""

    namespace: str
    total: Amounts = NO_AMOUNTS
    """Of all its pods together."""
    request: Amounts = NO_AMOUNTS
    """Of one pod."""
    guaranteed: Amounts = NO_AMOUNTS
    """Its pods within this much are not preempted for other namespaces."""
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file says so; empty where a person did. A file takes back only its own words."""


class QuotaUnset(Message, frozen=True, kw_only=True):
    """The namespace is unlimited again."""

    namespace: str
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file does not name it any more; empty where a person said so."""


class Cordoned(Message, frozen=True, kw_only=True):
    """What of a node not to use for new slices; no GPUs means all."""

    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    why: str = ""
    drain: bool = False
    """Evict the pods that are there, too."""
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file says so; empty where a person did."""


class Uncordoned(Message, frozen=True, kw_only=True):
    """The node may be used again."""

    node: NodeName
    source: SourceName = BY_HAND
    """The pod-watcher whose limits file does not name it any more; empty where a person said so."""


class LeaseHeld(Message, frozen=True, kw_only=True):
    """The leader of a role. Expires unless renewed."""

    role: str
    owner: RunId
    endpoint: str = ""
    """Where it answers questions by gRPC; empty when it does not."""
    version: str = ""
    """Of Sluice, as its holder runs it: for people, while versions are mixed. Empty: not known."""
