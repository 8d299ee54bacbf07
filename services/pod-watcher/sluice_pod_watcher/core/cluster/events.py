"""
Events and instructions of the cluster core, besides those of the bus that all cores share.

Objects come as the API server wrote them (parsed JSON). A listing comes in pieces, so that events do not grow with the
cluster: `ListingStarted`, one `...Seen` per object, `ListingEnded`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.folder.events import WriteLogLine

Raw = Mapping[str, Any]
"""An object of the API server."""
ListedKind = Literal["pods", "others", "nodes", "claims", "classes"]
"""Our pods (by label), all other pods, nodes, ResourceClaims, DeviceClasses: each kind is listed and watched alone."""

# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListingStarted:
    """
    The objects seen until `ListingEnded` are complete.

    `went_back`: the API server was restored from a backup, so its resourceVersions are smaller than before.
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
    """A pod of ours was listed, added or modified."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class PodGone:
    """A DELETED event, with the last state. Without a deletionTimestamp it only left our selection."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class OtherPodSeen:
    """A pod that is not ours, but uses resources of its node."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class OtherPodGone:
    """It was deleted, or became one of ours."""

    pod: Raw


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node was listed, added or modified."""

    node: Raw


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    node: Raw


Step = Literal["bind", "annotate", "condition"]


@dataclass(frozen=True, slots=True)
class PatchDone:
    """A write to a pod succeeded; `pod` is the API server's answer."""

    uid: RequestId
    step: Step
    pod: Raw


@dataclass(frozen=True, slots=True)
class PatchRefused:
    """
    A write to a pod failed with this HTTP status; 0 without an answer, when it may have landed.

    `retry_after_s`: the pause that the API server asks for, 0 for none.
    """

    uid: RequestId
    step: Step
    status: int
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PodRead:
    """The object under the pod's name now; None when there is none."""

    uid: RequestId
    pod: Raw | None


@dataclass(frozen=True, slots=True)
class PodUnreadable:
    """The read failed, which shows nothing about the pod."""

    uid: RequestId
    message: str


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall clock, in unix seconds: since when slices idle, and protected windows, are in its time."""

    unix_s: float


@dataclass(frozen=True, slots=True)
class PodEvicted:
    """The eviction was accepted: the pod will be deleted."""

    uid: RequestId


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """The eviction was rejected: 429 for a disruption budget, 404 and 409 when that pod no longer exists."""

    uid: RequestId
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class GpusListed:
    """The names of the GPU objects that existed when this process started."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuMirrored:
    """The object of a GPU was written or deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class GpuNotMirrored:
    """The object of a GPU could not be written."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ClaimsRead:
    """
    The result of `ReadClaims`: per claim the object, its volume and its class, as far as they exist.

    `forbidden`: why reading them is not allowed; empty when it is.
    """

    uid: RequestId
    claims: "tuple[ClaimObjects, ...]" = ()
    forbidden: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsUnreadable:
    """The claims could not be read now; `message` has the cause."""

    uid: RequestId
    message: str


ClaimObjects = tuple[str, Raw | None, Raw | None, Raw | None]
"""The name of a claim; the claim, its volume, its class."""


@dataclass(frozen=True, slots=True)
class ClaimsServed:
    """Whether the API server has ResourceClaims in version v1. If so, they are listed and watched from here on."""

    served: bool


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A ResourceClaim was listed, added or modified."""

    claim: Raw


@dataclass(frozen=True, slots=True)
class ClaimGone:
    """A ResourceClaim was deleted."""

    claim: Raw


@dataclass(frozen=True, slots=True)
class ClassSeen:
    """A DeviceClass was listed, added or modified."""

    device_class: Raw


@dataclass(frozen=True, slots=True)
class ClassGone:
    """A DeviceClass was deleted."""

    device_class: Raw


ClaimStep = Literal["create", "protect", "allocate", "deallocate"]


@dataclass(frozen=True, slots=True)
class ClaimWritten:
    """A write to a ResourceClaim succeeded; `claim` is the API server's answer, `uid` that of the pod it is for."""

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    claim: Raw


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """A write to a ResourceClaim failed with this HTTP status; 0 without an answer, when it may have landed."""

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    status: int
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HandOverWritten:
    """Admission can read how new pods get their devices."""

    mode: str


@dataclass(frozen=True, slots=True)
class HandOverNotWritten:
    """That could not be written."""

    message: str


@dataclass(frozen=True, slots=True)
class PlaceholderWritten:
    """A placeholder was created (`pod` is the API server's answer), or is gone (None)."""

    name: str
    pod: Raw | None


@dataclass(frozen=True, slots=True)
class PlaceholderNotWritten:
    """A placeholder could not be created or deleted."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The next turn, after `Continue`."""


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
    | WallClock
    | EvictionRefused
    | GpusListed
    | GpuMirrored
    | GpuNotMirrored
    | ClaimsServed
    | ClaimSeen
    | ClaimGone
    | ClassSeen
    | ClassGone
    | ClaimWritten
    | ClaimRefused
    | HandOverWritten
    | HandOverNotWritten
    | PlaceholderWritten
    | PlaceholderNotWritten
)

# -- instructions -------------------------------------------------------------------------------------------------

Patch = tuple[Mapping[str, Any], ...]
"""The operations of one JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class BindPod:
    """Write the pod's devices, its pin and its open gate, in one patch. `PatchDone` or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """
    Write, in one patch, that the slice was created again, is declined, or that the pod is none of ours. `PatchDone` or
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
    """Read these volume claims, and the topology of their volumes. `ClaimsRead` or `ClaimsUnreadable` follows."""

    uid: RequestId
    namespace: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvictPod:
    """
    Evict the pod, with its UID as a precondition. `PodEvicted` or `EvictionRefused` follows.

    Pods are only deleted by eviction: it deletes a pod that does not run, and respects disruption budgets for one that
    does.
    """

    uid: RequestId
    namespace: str
    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """
    An Event about a pod, named by `key`. With `count` above 1 it exists already, and only its series is updated.

    Nothing follows: a lost Event is not written again.
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
    """Make the object of a GPU show this. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnmirrorGpu:
    """Delete the object of a GPU. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str


@dataclass(frozen=True, slots=True)
class WatchClaims:
    """Watch ResourceClaims from here on. `ClaimsServed` follows, and a listing where they are served."""


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create this ResourceClaim for a pod. `ClaimWritten` or `ClaimRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProtectClaim:
    """Add the finalizer of the claim controller by this patch. `ClaimWritten` or `ClaimRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class WriteClaimStatus:
    """
    Merge this into the claim's status; a new allocation gets its timestamp. `ClaimWritten` or `ClaimRefused` follows.

    `uid` is that of the pod; empty where no pod waits for it.
    """

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteHandOver:
    """Write into its ConfigMap how new pods get their devices. `HandOverWritten` or `HandOverNotWritten` follows."""

    namespace: str
    mode: str


@dataclass(frozen=True, slots=True)
class CreatePlaceholder:
    """Create a placeholder pod. `PlaceholderWritten` or `PlaceholderNotWritten` follows."""

    namespace: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePlaceholder:
    """Delete a placeholder pod, with its UID as a precondition. What follows is as for `CreatePlaceholder`."""

    namespace: str
    name: str
    uid: str


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
    | WatchClaims
    | CreateClaim
    | ProtectClaim
    | WriteClaimStatus
    | WriteHandOver
    | CreatePlaceholder
    | DeletePlaceholder
    | WriteLogLine
)
Instruction = BusInstruction | Own
