"""What sources say: who asks for what, and what a node has besides GPUs."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, NodeName, RunId, SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.refusals import Refusal


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one container asks for: `gpus` devices of one shape on one node.

    Of `profile`, `sm_count`, `sm_percentage`, `memory_mib` any may be set; all that are set must hold. None set means
    a whole GPU each.
    """

    container: str
    gpus: int = 1
    mode: Literal["exclusive"] = "exclusive"
    profile: str | None = None
    sm_count: int | None = None
    sm_percentage: int | None = None
    memory_mib: int | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a request is bound to, as its source remembers it.

    After the broker was wiped nothing else tells that a running pod's slice is on a node that has not been opened yet;
    the request must wait for that node instead of being given a second slice.
    """

    node: NodeName
    allocation: AllocationId


class AllocationRequested(Message, frozen=True, kw_only=True):
    """A pod asks. Granted whole, on one node, or not at all."""

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
    held: Held | None = None


class RequestRejected(Message, frozen=True, kw_only=True):
    """What was written cannot be understood; the source itself refuses it."""

    revision: int
    source: SourceName
    origin: str
    namespace: str = ""
    name: str = ""
    refusal: Refusal


WithdrawCause = Literal["containers ended", "pod gone"]


class RequestWithdrawn(Message, frozen=True, kw_only=True):
    """Nobody wants it any more: every container has ended, or the object is gone. Terminal."""

    revision: int
    source: SourceName
    cause: WithdrawCause
    held: Held | None = None
    closing: bool = False
    """Said after `Released` was seen, with a TTL: the last word about this request."""


class SourceSynced(Message, frozen=True, kw_only=True):
    """One source has published all it has: `count` live requests, after its `epoch`-th full listing."""

    source: SourceName
    run: RunId
    epoch: int
    count: int


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class HostFacts(Message, frozen=True, kw_only=True):
    """What a node has besides GPUs, so that a pod is pinned only where it can really run."""

    cpu_cores: float
    memory_mib: int
    pods_free: int
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
