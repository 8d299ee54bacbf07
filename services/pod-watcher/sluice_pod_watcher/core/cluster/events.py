"""Events and instructions of the cluster core, besides those of the bus that all cores share. Objects come as the API
server wrote them (parsed JSON). A listing is `ListingStarted`, one `Seen` per object, `ListingEnded`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

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


class OfObject(msgspec.Struct, frozen=True):
    """An instruction about one object, for the request `uid`."""

    uid: RequestId
    namespace: str
    name: str


class ListingStarted(msgspec.Struct, frozen=True):
    """Objects seen until `ListingEnded` are complete. `went_back`: restored from a backup, versions are smaller."""

    what: ListedKind
    went_back: bool = False


class ListingEnded(msgspec.Struct, frozen=True):
    """The listing is complete, as of this resourceVersion."""

    what: ListedKind
    version: str


class Seen(msgspec.Struct, frozen=True):
    """An object was listed, added or modified."""

    what: ListedKind
    object: Raw


class Gone(msgspec.Struct, frozen=True):
    """A DELETED event, with the last state. A pod without a deletionTimestamp only left our selection."""

    what: ListedKind
    object: Raw


class WallClock(msgspec.Struct, frozen=True):
    """The wall clock, in unix seconds: since when slices idle, and protected windows, are in its time."""

    unix_s: float


class GpusListed(msgspec.Struct, frozen=True):
    """The names of the GPU objects that existed when this process started."""

    names: tuple[str, ...]


class ClaimsServed(msgspec.Struct, frozen=True):
    """Whether the API server has ResourceClaims in version v1. If so, they are listed and watched from here on."""

    served: bool


C = TypeVar("C", bound="Call")


class Done(msgspec.Struct, Generic[C], frozen=True):
    """An instruction was carried out. `answer`: the object as the API server shows it now; of `ReadPod` None where
    there is none; of `ReadClaims` a `ClaimObjects` for each claim."""

    wanted: C
    answer: Any = None


class Failed(msgspec.Struct, Generic[C], frozen=True):
    """An instruction failed with this HTTP status; 0 without an answer: a write may have landed. `retry_after_s`: the
    pause that the API server asks for, 0 for none."""

    wanted: C
    status: int
    message: str
    retry_after_s: float = 0.0

    @property
    def why(self) -> str:
        return f"{self.message} ({self.status})" if self.status else self.message


Result = Done[C] | Failed[C]


class ClaimObjects(NamedTuple):
    """A volume claim, and what was found of it."""

    name: str
    claim: Raw | None
    volume: Raw | None
    storage_class: Raw | None


class Continued(msgspec.Struct, frozen=True):
    """The next turn, after `Continue`."""


ObjectEvent = ListingStarted | ListingEnded | Seen | Gone
Event = BusEvent | Ticked | Continued | ObjectEvent | WallClock | GpusListed | ClaimsServed | Done[Any] | Failed[Any]
Patch = tuple[Mapping[str, Any], ...]  # the operations of one JSON patch (RFC 6902)
ClaimStep = Literal["create", "protect", "allocate", "deallocate"]


class BindPod(OfObject, frozen=True):
    """Write the pod's devices, its pin and its open gate, in one patch."""

    patch: Patch


class AnnotatePod(OfObject, frozen=True):
    """Write that the slice was created again or is declined, or that the pod is not ours."""

    patch: Patch


class WritePodCondition(OfObject, frozen=True):
    """Set our condition, by a strategic merge that holds the UID."""

    status: Literal["True", "False"]
    reason: str
    message: str


class ReadPod(OfObject, frozen=True):
    """Read what is under this name, whatever its labels."""


class ReadClaims(msgspec.Struct, frozen=True):
    """Read these volume claims, and the topology of their volumes."""

    uid: RequestId
    namespace: str
    names: tuple[str, ...]


class EvictPod(OfObject, frozen=True):
    """Evict the pod, with its UID as a precondition. Pods are only deleted by eviction: it deletes a pod that does not
    run, and respects disruption budgets for one that does."""

    cause: str


class WriteEvent(OfObject, frozen=True):
    """An Event about a pod, named by `key`; `count` above 1 updates its series. A lost one is not repeated."""

    key: str
    level: Literal["Normal", "Warning"]
    reason: str
    note: str
    count: int = 1


class MirrorGpu(msgspec.Struct, frozen=True):
    """Make the object of a GPU show this."""

    name: str
    status: Mapping[str, Any]


class UnmirrorGpu(msgspec.Struct, frozen=True):
    """Delete the object of a GPU."""

    name: str


class WatchClaims(msgspec.Struct, frozen=True):
    """Watch ResourceClaims from here on. `ClaimsServed` follows, and a listing where they are served."""


class CreateClaim(OfObject, frozen=True):
    """Create this ResourceClaim for a pod."""

    step: ClassVar[ClaimStep] = "create"
    body: Mapping[str, Any]


class ProtectClaim(OfObject, frozen=True):
    """Add the finalizer of the claim controller by this patch."""

    step: ClassVar[ClaimStep] = "protect"
    patch: Patch


class WriteClaimStatus(OfObject, frozen=True):
    """Merge this into the claim's status (a new allocation gets its time). `uid`: the pod's; empty if none waits."""

    step: ClaimStep
    body: Mapping[str, Any]


class WriteHandOver(msgspec.Struct, frozen=True):
    """Write into its ConfigMap how new pods get their devices."""

    namespace: str
    mode: str


class CreatePlaceholder(msgspec.Struct, frozen=True):
    """Create a placeholder pod."""

    namespace: str
    name: str
    body: Mapping[str, Any]


class DeletePlaceholder(msgspec.Struct, frozen=True):
    """Delete a placeholder pod, with its UID as a precondition."""

    namespace: str
    name: str
    uid: str


class Continue(msgspec.Struct, frozen=True):
    """There is more to do than one turn allows: let others have theirs. `Continued` follows."""


ClaimWrite = CreateClaim | ProtectClaim | WriteClaimStatus
PodWrite = BindPod | AnnotatePod | WritePodCondition
Call = (PodWrite | ReadPod | ReadClaims | EvictPod) | (
    ClaimWrite | WriteHandOver | MirrorGpu | UnmirrorGpu | CreatePlaceholder | DeletePlaceholder
)
"""Instructions that `Done` or `Failed` follows."""
Own = Call | Continue | WriteEvent | WatchClaims | WriteLogLine
Instruction = BusInstruction | Own
