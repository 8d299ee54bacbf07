"""
What the core of a cluster's pod-watcher hears and says, besides the exchange that all cores share.

Objects come as the API server wrote them (JSON, parsed). A listing is told in pieces, so that no event is larger for a
larger cluster: `ListingStarted`, one `...Seen` for each object, `ListingEnded`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.folder.events import WriteLogLine

Raw = Mapping[str, Any]
"""An object of the API server."""
ListedKind = Literal["pods", "others", "nodes"]
"""Pods of ours (by our label), all other pods, nodes: each is listed and watched by itself."""

# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListingStarted:
    """
    From here to `ListingEnded`, what is seen is all there is.

    `went_back`: the API server's storage was restored from a backup, and its versions are smaller than they were.
    """

    what: ListedKind
    went_back: bool = False


@dataclass(frozen=True, slots=True)
class ListingEnded:
    """The listing is complete, as of this resourceVersion."""

    what: ListedKind
    version: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of ours is listed, or was added or modified."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class PodGone:
    """A DELETED event, with the last state. Without a deletionTimestamp it only left our selection."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class OtherPodSeen:
    """A pod that is none of ours: it takes room on its node."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class OtherPodGone:
    """It is not there any more, or is one of ours now."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node is listed, or was added or modified."""

    node: Raw


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    node: Raw


Step = Literal["bind", "annotate", "condition"]


@dataclass(frozen=True, slots=True)
class PatchDone:
    """A write to a pod was taken; `pod` is what the API server answered."""

    uid: RequestId
    step: Step
    pod: Raw


@dataclass(frozen=True, slots=True)
class PatchRefused:
    """
    A write to a pod was refused with this HTTP status; 0 when no answer came, and it may have landed.

    `retry_after_s`: the pause that the API server asks for, 0 for none.
    """

    uid: RequestId
    step: Step
    status: int
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PodRead:
    """What the API server has under the pod's name now; None when there is nothing."""

    uid: RequestId
    pod: Raw | None


@dataclass(frozen=True, slots=True)
class PodUnreadable:
    """It could not be read; this says nothing about the pod."""

    uid: RequestId
    message: str


@dataclass(frozen=True, slots=True)
class PodEvicted:
    """The eviction was taken: the pod will be gone."""

    uid: RequestId


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """The eviction was not taken: 429 for a disruption budget, 404 and 409 for a pod that is not that one any more."""

    uid: RequestId
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class GpusListed:
    """The objects of GPUs that were there when this process began, by name."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuMirrored:
    """The object of a GPU was written, or is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class GpuNotMirrored:
    """It could not be written."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ClaimsRead:
    """
    What `ReadClaims` found: for each claim the object, its volume and its class, as far as they are there.

    `forbidden`: why they may not be read at all; empty when they may.
    """

    uid: RequestId
    claims: "tuple[ClaimObjects, ...]" = ()
    forbidden: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsUnreadable:
    """They could not be read now; `message` says why."""

    uid: RequestId
    message: str


ClaimObjects = tuple[str, Raw | None, Raw | None, Raw | None]
"""The name of a claim; the claim, its volume, its class."""


@dataclass(frozen=True, slots=True)
class Continued:
    """It is our turn again, after `Continue`."""


Event = (
    BusEvent
    | Ticked
    | Continued
    | ListingStarted
    | ListingEnded
    | PodSeen
    | PodGone
    | OtherPodSeen
    | OtherPodGone
    | NodeSeen
    | NodeGone
    | PatchDone
    | PatchRefused
    | PodRead
    | PodUnreadable
    | ClaimsRead
    | ClaimsUnreadable
    | PodEvicted
    | EvictionRefused
    | GpusListed
    | GpuMirrored
    | GpuNotMirrored
)

# -- instructions -------------------------------------------------------------------------------------------------

Patch = tuple[Mapping[str, Any], ...]
"""The operations of one JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class BindPod:
    """Tell the pod its devices, pin it and open its gate, in one patch. `PatchDone` or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """
    Tell the pod, in one patch, that its slice was made anew, or that it is not let go with it. `PatchDone` or
    `PatchRefused` follows.
    """

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class WritePodCondition:
    """Set our condition, by a strategic merge that holds the UID. `PatchDone` or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read what is under this name, whatever its labels. `PodRead` or `PodUnreadable` follows."""

    uid: RequestId
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ReadClaims:
    """Read these volume claims, and where their volumes can be had. `ClaimsRead` or `ClaimsUnreadable` follows."""

    uid: RequestId
    namespace: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvictPod:
    """
    Evict the pod, with the UID as a precondition. `PodEvicted` or `EvictionRefused` follows.

    Pods are never deleted in another way: an eviction of a pod that does not run is a deletion, and disruption budgets
    hold for one that does.
    """

    uid: RequestId
    namespace: str
    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """
    An Event about a pod. `key` names it; with `count` above 1 it is there, and only its series is written.

    Nothing follows: events are for people, and one that is lost is not told twice.
    """

    uid: RequestId
    namespace: str
    name: str
    key: str
    level: Literal["Normal", "Warning"]
    reason: str
    note: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class MirrorGpu:
    """Make the object of a GPU say this. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnmirrorGpu:
    """Delete the object of a GPU. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str


@dataclass(frozen=True, slots=True)
class Continue:
    """There is more to do than one turn allows: let others have theirs. `Continued` follows."""


Own = (
    Continue
    | BindPod
    | AnnotatePod
    | WritePodCondition
    | ReadPod
    | ReadClaims
    | EvictPod
    | WriteEvent
    | MirrorGpu
    | UnmirrorGpu
    | WriteLogLine
)
Instruction = BusInstruction | Own
