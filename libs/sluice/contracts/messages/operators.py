"""What operators set, and who works in a role."""

from sluice.contracts.ids import GpuUuid, NodeName, RunId
from sluice.contracts.messages.base import Message


class QuotaSet(Message, frozen=True, kw_only=True):
    """The limits of one namespace. None is unlimited, 0 blocks."""

    namespace: str
    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


class Cordoned(Message, frozen=True, kw_only=True):
    """What of one node not to use for new slices; no GPUs named means all of them."""

    node: NodeName
    gpus: tuple[GpuUuid, ...] = ()
    why: str = ""


class Uncordoned(Message, frozen=True, kw_only=True):
    """The node may be used again."""

    node: NodeName


class LeaseHeld(Message, frozen=True, kw_only=True):
    """Who works in a role. Vanishes by TTL when not renewed."""

    role: str
    owner: RunId
    endpoint: str = ""
    """Where it answers questions by gRPC; empty when it does not."""
    version: str = ""
    """Of Sluice, as its holder runs it: for people, while versions are mixed. Empty: not known."""
