"""What the pod-watcher's core hears and says, besides the exchange that all cores share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import (
    NO_LEEWAY,
    NO_NEEDS,
    Claim,
    Held,
    HostFacts,
    HostNeeds,
    Leeway,
    PodGroup,
    WithdrawCause,
)
from sluice.contracts.reasons import Refusal

# -- what is kept on disk -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestTerms:
    """How the claims are asked for: what else the pod needs of its node, how to choose, and how urgently."""

    host: HostNeeds = NO_NEEDS
    priority: int = 0
    node_policy: str = ""
    gpu_policy: str = ""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None
    preempts: bool = True
    warnings: tuple[str, ...] = ()
    """What is taken as it was written, and its owner should know: sentences."""
    labels: Mapping[str, str] = field(default_factory=dict)


NO_TERMS = ManifestTerms()


@dataclass(frozen=True, slots=True)
class RequestRevision:
    """What was said at one revision of a request: the claims, or why they cannot be understood."""

    revision: int
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    terms: ManifestTerms = NO_TERMS


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """
    One document of one file, for as long as it is there, as the request `uid`.

    `document` is `namespace/name`; empty when it stands for trouble with the file as a whole. `asks` are the last few
    things said, newest last, never empty. `ended` is set once nobody wants it any more, for ever.
    """

    uid: RequestId
    file: str
    document: str
    namespace: str
    name: str
    asks: tuple[RequestRevision, ...]
    ended: WithdrawCause | None = None
    held: Held | None = None
    """What it was bound to last. Kept here because the bus may forget it."""


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdentitiesLoaded:
    """What the identities file holds. Heard once, before anything is decided; empty when there was no file."""

    records: tuple[IdentityRecord, ...]


@dataclass(frozen=True, slots=True)
class IdentitiesSaved:
    """The records of `SaveIdentities(version)` will survive a crash of the machine."""

    version: int


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """
    One file of the folder: its name (no path) and its text, or why there is no text.

    `too_large` stands for a file over `Rules.file_bytes_max`, `error` for any other reason.
    """

    name: str
    text: str = ""
    error: str = ""
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class FolderListed:
    """Everything in the folder, at one moment after the listing was asked for. What is not in it is not there."""

    files: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class FolderUnlistable:
    """The folder could not be listed; this says nothing about what is in it."""

    why: str


@dataclass(frozen=True, slots=True)
class FolderChanged:
    """Something in the folder has changed (a hint: it is listed again anyway, from time to time)."""


@dataclass(frozen=True, slots=True)
class HostsKnown:
    """What the nodes have besides GPUs."""

    hosts: tuple[tuple[NodeName, HostFacts], ...]


Event = (
    BusEvent
    | Ticked
    | IdentitiesLoaded
    | IdentitiesSaved
    | FolderListed
    | FolderUnlistable
    | FolderChanged
    | HostsKnown
)

# -- instructions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveIdentities:
    """Put all records on disk, in place of what is there; answered by `IdentitiesSaved`. One at a time."""

    version: int
    records: tuple[IdentityRecord, ...]


@dataclass(frozen=True, slots=True)
class ListFolder:
    """List the folder; answered by `FolderListed` or `FolderUnlistable`. One at a time."""


@dataclass(frozen=True, slots=True)
class WriteLogLine:
    """One line in the log: what changed, in words."""

    level: Literal["info", "warning"]
    sentence: str
    request: str = ""


Instruction = BusInstruction | SaveIdentities | ListFolder | WriteLogLine
