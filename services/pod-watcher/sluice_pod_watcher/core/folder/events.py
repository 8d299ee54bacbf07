"""Events and instructions of the folder core, besides those of the bus that all cores share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.reasons import Refusal


@dataclass(frozen=True, slots=True)
class ManifestTerms:
    """The terms of the claims: what else the pod needs of its node, how to choose, and its priority."""

    host: msg.HostNeeds = msg.NO_NEEDS
    priority: int = 0
    node_policy: str = ""
    gpu_policy: str = ""
    leeway: msg.Leeway = msg.NO_LEEWAY
    group: msg.PodGroup | None = None
    preempts: bool = True
    warnings: tuple[str, ...] = ()  # sentences about parts that were accepted, but may not mean what the owner intended
    labels: Mapping[str, str] = field(default_factory=dict)


NO_TERMS = ManifestTerms()


@dataclass(frozen=True, slots=True)
class RequestRevision:
    """One revision of a request: the claims, or why they cannot be parsed."""

    revision: int
    claims: tuple[msg.Claim, ...] = ()
    refusal: Refusal | None = None
    terms: ManifestTerms = NO_TERMS


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """One document of one file, for as long as it exists, as the request `uid`. `document` is `namespace/name`; empty
    when it stands for a problem with the whole file. `asks` are the last few revisions, newest last, never empty.
    `ended` is set for good once the document no longer wants it."""

    uid: RequestId
    file: str
    document: str
    namespace: str
    name: str
    asks: tuple[RequestRevision, ...]
    ended: msg.WithdrawCause | None = None
    held: msg.Held | None = None  # Its last slice. Kept here because the bus may forget it.


@dataclass(frozen=True, slots=True)
class IdentitiesLoaded:
    """The content of the identities file, before anything is decided; empty when there was no file."""

    records: tuple[IdentityRecord, ...]


@dataclass(frozen=True, slots=True)
class IdentitiesSaved:
    """The records of `SaveIdentities(version)` will survive a crash of the machine."""

    version: int


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the folder: its name (no path) and its text, or why there is none. `too_large`: over
    `FolderConfig.file_bytes_max`. `error`: any other reason."""

    name: str
    text: str = ""
    error: str = ""
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class FolderListed:
    """Everything in the folder, at one moment after the listing was requested. What is missing does not exist."""

    files: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class FolderUnlistable:
    """The folder could not be listed, which shows nothing about its content."""

    why: str


@dataclass(frozen=True, slots=True)
class FolderChanged:
    """Something in the folder changed (a hint: it is listed again anyway, from time to time)."""


@dataclass(frozen=True, slots=True)
class HostsKnown:
    """The resources of the nodes besides GPUs."""

    hosts: tuple[tuple[NodeName, msg.HostFacts], ...]


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


@dataclass(frozen=True, slots=True)
class SaveIdentities:
    """Replace the records on disk by these; answered by `IdentitiesSaved`. One at a time."""

    version: int
    records: tuple[IdentityRecord, ...]


@dataclass(frozen=True, slots=True)
class ListFolder:
    """List the folder; answered by `FolderListed` or `FolderUnlistable`. One at a time."""


@dataclass(frozen=True, slots=True)
class WriteLogLine:
    """One log line: what changed."""

    level: Literal["info", "warning"]
    sentence: str
    request: str = ""


Instruction = BusInstruction | SaveIdentities | ListFolder | WriteLogLine
