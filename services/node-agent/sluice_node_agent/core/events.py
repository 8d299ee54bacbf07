"""
What a node agent's core hears, besides the exchange that all cores share, and the facts that this is told in.

Results carry the `token` of the instruction that they answer (`instructions`), exactly one for each.
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
    """Why a device refused, in our words. The NVML return codes that lead here are named in `device.port`."""

    INSUFFICIENT_RESOURCES = "InsufficientResources"
    IN_USE = "InUse"
    NOT_SUPPORTED = "NotSupported"
    NO_PERMISSION = "NoPermission"
    NOT_FOUND = "NotFound"
    GPU_LOST = "GpuLost"
    INVALID_ARGUMENT = "InvalidArgument"
    DRIVER_MISMATCH = "DriverMismatch"
    DIFFERENT = "Different"
    """What is there is not what was expected; it was left alone."""
    UNKNOWN = "Unknown"


HolderKind = Literal["compute", "mps", "file"]
"""
`compute`: it has a context on the device. `mps`: it is an MPS server (its clients are listed too). `file`: it only has
the device's files open, as monitoring tools do.
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a device. `owner` is the UID of its pod, empty when it belongs to none that is known."""

    pid: int
    owner: str
    name: str = ""
    kind: HolderKind = "compute"


@dataclass(frozen=True, slots=True)
class PodProcess:
    """A process in the cgroup of a pod. `in_kernel`: it waits there, and no signal ends it meanwhile (state D)."""

    pid: int
    name: str = ""
    in_kernel: bool = False


@dataclass(frozen=True, slots=True)
class FoundMpsHome:
    """
    A home whose directory was found at the start: who it is for, as was written there when its daemon was started.

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
    A place where an agent of this node has made an instance in this boot, or was about to.

    `size` 0: the whole GPU, which was set to serve one MPS daemon.
    """

    gpu: GpuUuid
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class FoundTicket:
    """What a ticket says that was found at the start: the copy of its slice's record, or in words why it says none."""

    ticket: str
    record: TicketRecord | None = None
    problem: str = ""
    is_half: bool = False
    """It was being made or removed: no container finds it."""


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that an MPS server serves. `owner` as in `Holder`."""

    pid: int
    owner: str


@dataclass(frozen=True, slots=True)
class QuotaTenant:
    """A container's share of the time of a home, as the token scheduler takes it. `owner` is its pod's UID."""

    name: str
    """`<allocation>/<container>`: the same for as long as the allocation lives."""
    socket: str
    """The file name of its socket, in the home's directory."""
    owner: str
    uid: int
    request_permille: int
    limit_permille: int
    width_percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class QuotaSeen:
    """How the token scheduler of a home is. `greeted` are the processes that have said hello, by pid."""

    alive: bool
    greeted: tuple[int, ...] = ()


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """
    The first event of every life: what the journal says and what is on the devices now.

    `journal_problem` is empty, or says in words why the journal is missing or cannot be trusted; `records` are then
    empty. `gpus` carry all instances found, with `allocation` None and `creatable` empty: both are the core's to say.
    `tickets` are the ticket directories found, `found_tickets` what they say, where the journal was lost. `homes` are
    the homes whose directories were found, and below `mps_root` each home has its own: `<mps_root>/<home>/pipe` and
    `.../log`. `marks` are the places where instances are ours; `unmarked` those where one may be ours without a mark,
    None where that is any. `modes` is how this node can hand out devices. `nameless` are the GPUs that could not even
    tell their UUID, so that they are not among `gpus`: by index, why.
    """

    boot_id: str
    endpoint: str
    gpus: tuple[GpuReport, ...]
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
    """Whether a kubelet may run pods on this machine: what runs of one is in its cgroup, and is looked for there."""
    why_unseen: str = ""
    """Why the processes of those pods cannot be seen; empty when they can."""
    time_quota: bool = False
    """Whether the client library of the time quota is here, so that fractional shares are held to their time."""
    version: str = ""
    """Of Sluice, for people."""


@dataclass(frozen=True, slots=True)
class GpuTroubled:
    """
    The driver told of an error of a GPU by itself (Xid), or which GPU one is that could not tell its UUID at the start:
    it must be read anew.
    """

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class QuarantineReleased:
    """
    An operator wants a quarantined slice tried again at once.

    `ignore_holders`: he vouches that the processes found on its devices are none of its tenant's.
    """

    allocation: AllocationId
    ignore_holders: bool = False


@dataclass(frozen=True, slots=True)
class JournalSaved:
    """The record is on disk."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuInstanceCreated:
    """The GPU instance exists, under an id of the driver's choice."""

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
    """The compute instance is not there any more."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuInstanceDestroyed:
    """The GPU instance is not there any more."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuRead:
    """One GPU as it is now (as in `AgentStarted.gpus`; lost GPUs are reported unhealthy, with what was known)."""

    token: int
    report: GpuReport


@dataclass(frozen=True, slots=True)
class HoldersListed:
    """All processes on one device."""

    token: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class TenantsListed:
    """All processes of one pod, whatever they hold."""

    token: int
    processes: tuple[PodProcess, ...]


@dataclass(frozen=True, slots=True)
class TenantsUnseen:
    """It could not be looked for the processes of a pod: nothing follows from that."""

    token: int
    message: str


@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """A device instruction was not carried out."""

    token: int
    kind: DeviceErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class TicketMade:
    """The ticket's directory exists."""

    token: int


@dataclass(frozen=True, slots=True)
class TicketRemoved:
    """The ticket's directory does not exist (any more)."""

    token: int


@dataclass(frozen=True, slots=True)
class TicketsCompared:
    """Which of the tickets that were named are not there, or not as they should be."""

    token: int
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TicketRefused:
    """A ticket could not be made or removed, or tickets not be looked at."""

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
    """The token scheduler has the tenants that were ordered, and their sockets are there."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsSeen:
    """
    How a daemon is. `alive`: the process that was named still runs; one that does not answer is MpsRefused.

    `fault` is empty, or says what its server says of a fault. `waiting` are uids whose clients wait for this daemon
    although it serves another one.
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
    """The server has let go of the clients that were named."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsStopped:
    """No process of the daemon is left, nor its directories."""

    token: int


@dataclass(frozen=True, slots=True)
class MpsRefused:
    """An instruction about a daemon was not carried out. The daemon may or may not run."""

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
    ComputeModeSet,
    MpsStarted,
    MpsLimitsSet,
    QuotasSet,
    MpsSeen,
    MpsClientsTerminated,
    MpsStopped,
    MpsRefused,
)
Event = BusEvent | Ticked | AgentStarted | GpuTroubled | QuarantineReleased | Result
