"""Events and instructions of the cluster core, besides those of the bus that all cores share. Objects come as the API
server wrote them (parsed JSON). A listing comes in pieces, so that events do not grow with the cluster:
`ListingStarted`, one `...Seen` per object, `ListingEnded`."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.folder.events import WriteLogLine


def mapping_in(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, dict) else {}


def mappings_in(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = holder.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


Raw = Mapping[str, Any]  # an object of the API server
ListedKind = Literal["pods", "others", "nodes", "claims", "classes"]
"""Our pods (by label), all other pods, nodes, ResourceClaims, DeviceClasses: each kind is listed and watched alone."""


class ListingStarted(msgspec.Struct, frozen=True):
    """The objects seen until `ListingEnded` are complete. `went_back`: the API server was restored from a backup, so
    its resourceVersions are smaller than before."""

    what: ListedKind
    went_back: bool = False


class ListingEnded(msgspec.Struct, frozen=True):
    """The listing is complete, as of this resourceVersion."""

    what: ListedKind
    version: str


class PodSeen(msgspec.Struct, frozen=True):
    """A pod of ours was listed, added or modified."""

    pod: Raw


class PodGone(msgspec.Struct, frozen=True):
    """A DELETED event, with the last state. Without a deletionTimestamp it only left our selection."""

    pod: Raw


class OtherPodSeen(msgspec.Struct, frozen=True):
    """A pod that is not ours, but uses resources of its node."""

    pod: Raw


class OtherPodGone(msgspec.Struct, frozen=True):
    """It was deleted, or became one of ours."""

    pod: Raw


class NodeSeen(msgspec.Struct, frozen=True):
    """A node was listed, added or modified."""

    node: Raw


class NodeGone(msgspec.Struct, frozen=True):
    """A node was deleted."""

    node: Raw


Step = Literal["bind", "annotate", "condition"]


class PatchDone(msgspec.Struct, frozen=True):
    """A write to a pod succeeded; `pod` is the API server's answer."""

    uid: RequestId
    step: Step
    pod: Raw


class PatchRefused(msgspec.Struct, frozen=True):
    """A write to a pod failed with this HTTP status; 0 without an answer, when it may have landed. `retry_after_s`: the
    pause that the API server asks for, 0 for none."""

    uid: RequestId
    step: Step
    status: int
    message: str
    retry_after_s: float = 0.0


class PodRead(msgspec.Struct, frozen=True):
    """The object under the pod's name now; None when there is none."""

    uid: RequestId
    pod: Raw | None


class PodUnreadable(msgspec.Struct, frozen=True):
    """The read failed, which shows nothing about the pod."""

    uid: RequestId
    message: str


class PodEvicted(msgspec.Struct, frozen=True):
    """The eviction was accepted: the pod will be deleted."""

    uid: RequestId


class EvictionRefused(msgspec.Struct, frozen=True):
    """The eviction was rejected: 429 for a disruption budget, 404 and 409 when that pod no longer exists."""

    uid: RequestId
    status: int
    message: str


class GpusListed(msgspec.Struct, frozen=True):
    """The names of the GPU objects that existed when this process started."""

    names: tuple[str, ...]


class GpuMirrored(msgspec.Struct, frozen=True):
    """The object of a GPU was written or deleted."""

    name: str


class GpuNotMirrored(msgspec.Struct, frozen=True):
    """The object of a GPU could not be written."""

    name: str
    message: str


class ClaimsRead(msgspec.Struct, frozen=True):
    """The result of `ReadClaims`: per claim the object, its volume and its class, as far as they exist. `forbidden`:
    why reading them is not allowed; empty when it is."""

    uid: RequestId
    claims: "tuple[ClaimObjects, ...]" = ()
    forbidden: str = ""


class ClaimsUnreadable(msgspec.Struct, frozen=True):
    """The claims could not be read now; `message` has the cause."""

    uid: RequestId
    message: str


ClaimObjects = tuple[str, Raw | None, Raw | None, Raw | None]  # the name of a claim; the claim, its volume, its class


class ClaimsServed(msgspec.Struct, frozen=True):
    """Whether the API server has ResourceClaims in version v1. If so, they are listed and watched from here on."""

    served: bool


class ClaimSeen(msgspec.Struct, frozen=True):
    """A ResourceClaim was listed, added or modified."""

    claim: Raw


class ClaimGone(msgspec.Struct, frozen=True):
    """A ResourceClaim was deleted."""

    claim: Raw


class ClassSeen(msgspec.Struct, frozen=True):
    """A DeviceClass was listed, added or modified."""

    device_class: Raw


class ClassGone(msgspec.Struct, frozen=True):
    """A DeviceClass was deleted."""

    device_class: Raw


ClaimStep = Literal["create", "protect", "allocate", "deallocate"]


class ClaimWritten(msgspec.Struct, frozen=True):
    """A write to a ResourceClaim succeeded; `claim` is the API server's answer, `uid` that of the pod it is for."""

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    claim: Raw


class ClaimRefused(msgspec.Struct, frozen=True):
    """A write to a ResourceClaim failed with this HTTP status; 0 without an answer, when it may have landed."""

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    status: int
    message: str
    retry_after_s: float = 0.0


class HandOverWritten(msgspec.Struct, frozen=True):
    """Admission can read how new pods get their devices."""

    mode: str


class HandOverNotWritten(msgspec.Struct, frozen=True):
    """That could not be written."""

    message: str


class PlaceholderWritten(msgspec.Struct, frozen=True):
    """A placeholder was created (`pod` is the API server's answer), or is gone (None)."""

    name: str
    pod: Raw | None


class PlaceholderNotWritten(msgspec.Struct, frozen=True):
    """A placeholder could not be created or deleted."""

    name: str
    message: str


class Continued(msgspec.Struct, frozen=True):
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

Patch = tuple[Mapping[str, Any], ...]  # the operations of one JSON patch (RFC 6902)


class BindPod(msgspec.Struct, frozen=True):
    """Write the pod's devices, its pin and its open gate, in one patch. `PatchDone` or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


class AnnotatePod(msgspec.Struct, frozen=True):
    """Write, in one patch, that the slice was created again, is declined, or that the pod is none of ours. `PatchDone`
    or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


class WritePodCondition(msgspec.Struct, frozen=True):
    """Set our condition, by a strategic merge that holds the UID. `PatchDone` or `PatchRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    status: Literal["True", "False"]
    reason: str
    message: str


class ReadPod(msgspec.Struct, frozen=True):
    """Read what is under this name, whatever its labels. `PodRead` or `PodUnreadable` follows."""

    uid: RequestId
    namespace: str
    name: str


class ReadClaims(msgspec.Struct, frozen=True):
    """Read these volume claims, and the topology of their volumes. `ClaimsRead` or `ClaimsUnreadable` follows."""

    uid: RequestId
    namespace: str
    names: tuple[str, ...]


class EvictPod(msgspec.Struct, frozen=True):
    """Evict the pod, with its UID as a precondition. `PodEvicted` or `EvictionRefused` follows. Pods are only deleted
    by eviction: it deletes a pod that does not run, and respects disruption budgets for one that does."""

    uid: RequestId
    namespace: str
    name: str
    cause: str


class WriteEvent(msgspec.Struct, frozen=True):
    """An Event about a pod, named by `key`. With `count` above 1 it exists already, and only its series is updated.
    Nothing follows: a lost Event is not written again."""

    uid: RequestId
    namespace: str
    name: str
    key: str
    level: Literal["Normal", "Warning"]
    reason: str
    note: str
    count: int = 1


class MirrorGpu(msgspec.Struct, frozen=True):
    """Make the object of a GPU show this. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str
    status: Mapping[str, Any]


class UnmirrorGpu(msgspec.Struct, frozen=True):
    """Delete the object of a GPU. `GpuMirrored` or `GpuNotMirrored` follows."""

    name: str


class WatchClaims(msgspec.Struct, frozen=True):
    """Watch ResourceClaims from here on. `ClaimsServed` follows, and a listing where they are served."""


class CreateClaim(msgspec.Struct, frozen=True):
    """Create this ResourceClaim for a pod. `ClaimWritten` or `ClaimRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    body: Mapping[str, Any]


class ProtectClaim(msgspec.Struct, frozen=True):
    """Add the finalizer of the claim controller by this patch. `ClaimWritten` or `ClaimRefused` follows."""

    uid: RequestId
    namespace: str
    name: str
    patch: Patch


class WriteClaimStatus(msgspec.Struct, frozen=True):
    """Merge this into the claim's status; a new allocation gets its timestamp. `ClaimWritten` or `ClaimRefused`
    follows. `uid` is that of the pod; empty where no pod waits for it."""

    uid: RequestId
    namespace: str
    name: str
    step: ClaimStep
    body: Mapping[str, Any]


class WriteHandOver(msgspec.Struct, frozen=True):
    """Write into its ConfigMap how new pods get their devices. `HandOverWritten` or `HandOverNotWritten` follows."""

    namespace: str
    mode: str


class CreatePlaceholder(msgspec.Struct, frozen=True):
    """Create a placeholder pod. `PlaceholderWritten` or `PlaceholderNotWritten` follows."""

    namespace: str
    name: str
    body: Mapping[str, Any]


class DeletePlaceholder(msgspec.Struct, frozen=True):
    """Delete a placeholder pod, with its UID as a precondition. What follows is as for `CreatePlaceholder`."""

    namespace: str
    name: str
    uid: str


class Continue(msgspec.Struct, frozen=True):
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
