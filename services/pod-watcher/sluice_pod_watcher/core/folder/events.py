"""Events and instructions of the folder core, besides those of the bus that all cores share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sluice.contracts import ids, reasons
from sluice.contracts import messages as msg
from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.manifests import ManifestLimits

DEFAULT_LIMITS = ManifestLimits()
FOLDER = ids.SourceName("folder")


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """Times in seconds of the caller's clock."""

    source: ids.SourceName = FOLDER  # each folder needs its own: a source withdraws what it does not list
    max_gpus_per_node: int = 8  # requests above this are refused: no node has so many GPUs
    driver_capabilities: tuple[str, ...] = CAPABILITIES  # the driver capabilities that a container may choose
    relist_s: float = 5.0  # at least this often, whatever the file system tells; each listing is a heartbeat
    gone_grace_s: float = 1.0
    """How long a pod is missing or its file broken before that counts: editors move and truncate files."""
    closing_ttl_s: int = 4 * 3600  # time to live of final messages: far above any pause of any process (PROTOCOL W5)
    file_bytes_max: int = DEFAULT_LIMITS.file_bytes_max  # larger manifest files are refused
    documents_max: int = DEFAULT_LIMITS.documents_max  # files with more documents (items of a List count) are refused
    nesting_max: int = DEFAULT_LIMITS.nesting_max  # more deeply nested documents are refused
    nodes_max: int = DEFAULT_LIMITS.nodes_max  # files with more values, each alias counted in full, are refused


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
    refusal: reasons.Refusal | None = None
    terms: ManifestTerms = NO_TERMS


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """One document of one file as the request `uid`. `document`: `namespace/name`, empty for a problem of the whole
    file. `asks`: the last revisions, newest last, never empty. `ended`: for good."""

    uid: ids.RequestId
    file: str
    document: str
    namespace: str
    name: str
    asks: tuple[RequestRevision, ...]
    ended: msg.WithdrawCause | None = None
    held: msg.Held | None = None  # Its last slice. Kept here because the bus may forget it.


class IdentitiesLoaded(msgspec.Struct, frozen=True):
    """The content of the identities file, before anything is decided; empty when there was no file."""

    records: tuple[IdentityRecord, ...]


class IdentitiesSaved(msgspec.Struct, frozen=True):
    """The records of `SaveIdentities(version)` will survive a crash of the machine."""

    version: int


class ManifestFile(msgspec.Struct, frozen=True):
    """One file: its name (no path) and text, or why there is none: `too_large` (file_bytes_max) or `error`."""

    name: str
    text: str = ""
    error: str = ""
    too_large: bool = False


class FolderListed(msgspec.Struct, frozen=True):
    """Everything in the folder, at one moment after the listing was requested. What is missing does not exist."""

    files: tuple[ManifestFile, ...]


class FolderUnlistable(msgspec.Struct, frozen=True):
    """The folder could not be listed, which shows nothing about its content."""

    why: str


class FolderChanged(msgspec.Struct, frozen=True):
    """Something in the folder changed (a hint: it is listed again anyway, from time to time)."""


class HostsKnown(msgspec.Struct, frozen=True):
    """The resources of the nodes besides GPUs."""

    hosts: tuple[tuple[ids.NodeName, msg.HostFacts], ...]


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


class SaveIdentities(msgspec.Struct, frozen=True):
    """Replace the records on disk by these; answered by `IdentitiesSaved`. One at a time."""

    version: int
    records: tuple[IdentityRecord, ...]


class ListFolder(msgspec.Struct, frozen=True):
    """List the folder; answered by `FolderListed` or `FolderUnlistable`. One at a time."""


class WriteLogLine(msgspec.Struct, frozen=True):
    """One log line: what changed."""

    level: Literal["info", "warning"]
    sentence: str
    request: str = ""


Instruction = BusInstruction | SaveIdentities | ListFolder | WriteLogLine
