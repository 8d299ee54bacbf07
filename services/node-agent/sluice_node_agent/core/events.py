"""
Events of a node agent's core, besides the bus events that all cores share, and the facts that they carry.

A result carries the `token` of the instruction that it answers (`instructions`), exactly one for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sluice.contracts.bus.events import BusEvent, Ticked
from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import GpuReport, Mode
from sluice_node_agent.core.journal_records import Record, TicketRecord


class DeviceErrorKind(StrEnum):
    """Why a device operation was refused. `device.port` names the NVML return codes behind each."""

    INSUFFICIENT_RESOURCES = "InsufficientResources"
    IN_USE = "InUse"
    NOT_SUPPORTED = "NotSupported"
    NO_PERMISSION = "NoPermission"
    NOT_FOUND = "NotFound"
    GPU_LOST = "GpuLost"
    INVALID_ARGUMENT = "InvalidArgument"
    DRIVER_MISMATCH = "DriverMismatch"
    DIFFERENT = "Different"
    """The device differs from what was expected; it was left alone."""
    UNKNOWN = "Unknown"


HolderKind = Literal["compute", "mps", "file"]
"""
`compute`: has a context on the device. `mps`: is an MPS server (its clients are listed too). `file`: only has the
device's files open, as monitoring tools do.
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a device. `owner` is the UID of its pod, empty when no pod is known for it."""

    pid: int
    owner: str
    name: str = ""
    kind: HolderKind = "compute"


@dataclass(frozen=True, slots=True)
class PodProcess:
    """A process in the cgroup of a pod. `in_kernel`: in state D, where no signal ends it."""

    pid: int
    name: str = ""
    in_kernel: bool = False


@dataclass(frozen=True, slots=True)
class FoundMpsHome:
    """
    A home whose directory was found at the start, with the trust domain written there when its daemon was started.

    `pid` and `started_at` are the daemon's, 0 when none runs.
    """

    home: HomeId
    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    pid: int = 0
    started_at: int = 0


@dataclass(frozen=True, slots=True)
class OwnershipMark:
    """
    A place where an agent of this node has created an instance in this boot, or was about to.

    `size` 0: a whole GPU that was set to serve one MPS daemon.
    """

    gpu: GpuUuid
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundTicket:
    """What a ticket found at the start contains: the copy of its slice's record, or why it has none."""

    ticket: str
    record: TicketRecord | None = None
    problem: str = ""
    is_half: bool = False
    """It was being created or removed: no container finds it."""


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A client process of an MPS server. `owner` as in `Holder`."""

    pid: int
    owner: str


@dataclass(frozen=True, slots=True)
class QuotaTenant:
    """A container's share of the time of a home, as the token scheduler takes it."""

    name: str
    """`<allocation>/<container>`: constant while the allocation lives."""
    socket: str
    """The file name of its socket, in the home's directory."""
    owner: str
    """Its pod's UID; empty where a shared ResourceClaim has it, so that not all of its pods are known."""
    uid: int
    request_permille: int
    limit_permille: int
    width_percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class QuotaSeen:
    """The state of a home's token scheduler. `greeted`: pids of the processes that sent HELLO."""

    alive: bool
    greeted: tuple[int, ...] = ()


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """
    The first event of every run: what the journal contains and what is on the devices now.

    `journal_problem` is empty, or says why the journal is missing or untrusted; `records` are then empty. `gpus` carry
    all instances found, with `allocation` None and `creatable` empty: the core fills in both. `tickets` are the ticket
    directories found, `found_tickets` their content where the journal was lost. `homes` are the homes whose directories
    were found; below `mps_root` each home has its own `<mps_root>/<home>/pipe` and `.../log`. `marks` are the places
    where instances are ours; `unmarked` those where one may be ours without a mark, None where that is any. `modes` is
    how this node can hand out devices. `nameless` are the GPUs that could not read their UUID and so are not among
    `gpus`: index to reason.
    """

    boot_id: str
    endpoint: str
    gpus: tuple[GpuReport, ...]
    certificate: str = ""
    records: tuple[Record, ...] = ()
    journal_problem: str = ""
    driver_version: str = ""
    tickets: tuple[str, ...] = ()
    found_tickets: tuple[FoundTicket, ...] = ()
    toolkit_version: str = ""
    modes: tuple[Mode, ...] = ("exclusive",)
    mps_root: str = ""
    homes: tuple[FoundMpsHome, ...] = ()
    marks: tuple[OwnershipMark, ...] = ()
    unmarked: tuple[OwnershipMark, ...] | None = None
    nameless: Mapping[int, str] = field(default_factory=dict)
    has_pods: bool = False
    """Whether a kubelet may run pods on this machine: processes of a pod are then found through its cgroup."""
    why_unseen: str = ""
    """Why the processes of those pods cannot be listed; empty when they can."""
    time_quota: bool = False
    """Whether the time quota's client library is installed, so that the time of fractional shares is enforced."""
    cdi_claims: tuple[str, ...] = ()
    """UIDs of the ResourceClaims that CDI files of ours were found of."""
    hand_over: bool = False
    """Whether the kubelet plugin for ResourceClaims is served here."""
    version: str = ""
    """Of Sluice, for display."""


@dataclass(frozen=True, slots=True)
class GpuTroubled:
    """
    The driver reported an error of a GPU (Xid), or the UUID of a GPU that could not read it at the start: read it
    again.
    """

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class QuarantineReleased:
    """
    An operator wants a quarantined slice retried at once.

    `ignore_holders`: the operator confirms that the processes found on its devices are not its tenant's.
    """

    allocation: AllocationId
    ignore_holders: bool = False


@dataclass(frozen=True, slots=True)
class PrepareAsked:
    """
    The kubelet wants the devices of a ResourceClaim handed over -> `AnswerCall` with the same `call`, within
    `AgentConfig.prepare_within_s`. Asked again for the same claim, it is answered again.
    """

    call: int
    claim: str
    """UID."""
    name: str
    """`namespace/name`, for people."""


@dataclass(frozen=True, slots=True)
class UnprepareAsked:
    """The containers of all pods with a ResourceClaim have ended, says the kubelet -> `AnswerCall`."""

    call: int
    claim: str
    name: str


@dataclass(frozen=True, slots=True)
class HandOverChanged:
    """
    Whether the kubelet hands devices over by ResourceClaim: it has registered the plugin, and CDI files can be written.

    `why` not, in a sentence for operators; empty while nothing is wrong.
    """

    able: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class JournalSaved:
    """The record is on disk."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuInstanceCreated:
    """The GPU instance exists, under an id that the driver chose."""

    token: int
    gi_id: int


@dataclass(frozen=True, slots=True)
class ComputeInstanceCreated:
    """The compute instance exists; `uuid` is the MIG device's."""

    token: int
    uuid: str


@dataclass(frozen=True, slots=True)
class InstanceVerified:
    """The instance was read back as it was ordered."""

    token: int


@dataclass(frozen=True, slots=True)
class ComputeInstanceDestroyed:
    """The compute instance no longer exists."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuInstanceDestroyed:
    """The GPU instance no longer exists."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuRead:
    """The current state of one GPU (as in `AgentStarted.gpus`; a lost GPU is unhealthy, with its last known facts)."""

    token: int
    report: GpuReport


@dataclass(frozen=True, slots=True)
class HoldersListed:
    """All processes on one device."""

    token: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class TenantsListed:
    """All processes of one pod, with or without a device."""

    token: int
    processes: tuple[PodProcess, ...]


@dataclass(frozen=True, slots=True)
class TenantsUnseen:
    """The processes of a pod could not be listed: nothing follows from that."""

    token: int
    message: str


@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """A device instruction failed."""

    token: int
    kind: DeviceErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class TicketMade:
    """The ticket's directory exists."""

    token: int


@dataclass(frozen=True, slots=True)
class TicketRemoved:
    """The ticket's directory does not exist."""

    token: int


@dataclass(frozen=True, slots=True)
class TicketsCompared:
    """Which of the named tickets are missing or differ from what was ordered."""

    token: int
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TicketRefused:
    """A ticket could not be created or removed, or tickets could not be read."""

    token: int
    message: str


@dataclass(frozen=True, slots=True)
class CdiWritten:
    """The claim's CDI file is as ordered."""

    token: int


@dataclass(frozen=True, slots=True)
class CdiRemoved:
    """The claim has no CDI file."""

    token: int


@dataclass(frozen=True, slots=True)
class CdiCompared:
    """The claims whose CDI file is missing or differs from what was ordered."""

    token: int
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CdiRefused:
    """A CDI file could not be written or removed, or files could not be read."""

    token: int
    message: str


@dataclass(frozen=True, slots=True)
class ComputeModeSet:
    """The GPU is in the compute mode that was ordered."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsStarted:
    """The daemon answers, its server is of the right user, and its limits were read back as ordered."""

    token: int
    pid: int
    started_at: int


@dataclass(frozen=True, slots=True)
class MpsLimitsSet:
    """The limits were read back as ordered."""

    token: int


@dataclass(frozen=True, slots=True)
class QuotasSet:
    """The token scheduler has the ordered tenants, and their sockets exist."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsSeen:
    """
    The state of a daemon. `alive`: the named process still runs; one that does not answer is MpsRefused.

    `fault` is empty, or the fault that its server reports. `waiting` are uids whose clients wait for this daemon
    although it serves another uid.
    """

    token: int
    alive: bool
    fault: str = ""
    clients: tuple[MpsClient, ...] = ()
    waiting: tuple[int, ...] = ()
    quota: QuotaSeen | None = None
    """None where no time quota is enforced in this home."""


@dataclass(frozen=True, slots=True)
class MpsClientsTerminated:
    """The server has disconnected the named clients."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsStopped:
    """The daemon's processes and directories are gone."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsRefused:
    """An instruction about a daemon failed. The daemon may or may not run."""

    token: int
    message: str


Result = (
    JournalSaved
    | GpuInstanceCreated
    | ComputeInstanceCreated
    | InstanceVerified
    | ComputeInstanceDestroyed
    | GpuInstanceDestroyed
    | GpuRead
    | HoldersListed
    | TenantsListed
    | TenantsUnseen
    | DeviceRefused
    | TicketMade
    | TicketRemoved
    | TicketsCompared
    | TicketRefused
    | CdiWritten
    | CdiRemoved
    | CdiCompared
    | CdiRefused
    | ComputeModeSet
    | MpsStarted
    | MpsLimitsSet
    | QuotasSet
    | MpsSeen
    | MpsClientsTerminated
    | MpsStopped
    | MpsRefused
)
RESULTS = (
    JournalSaved,
    GpuInstanceCreated,
    ComputeInstanceCreated,
    InstanceVerified,
    ComputeInstanceDestroyed,
    GpuInstanceDestroyed,
    GpuRead,
    HoldersListed,
    TenantsListed,
    TenantsUnseen,
    DeviceRefused,
    TicketMade,
    TicketRemoved,
    TicketsCompared,
    TicketRefused,
    CdiWritten,
    CdiRemoved,
    CdiCompared,
    CdiRefused,
    ComputeModeSet,
    MpsStarted,
    MpsLimitsSet,
    QuotasSet,
    MpsSeen,
    MpsClientsTerminated,
    MpsStopped,
    MpsRefused,
)
KubeletEvent = PrepareAsked | UnprepareAsked | HandOverChanged
KUBELET_EVENTS = (PrepareAsked, UnprepareAsked, HandOverChanged)
Event = BusEvent | Ticked | AgentStarted | GpuTroubled | QuarantineReleased | KubeletEvent | Result
