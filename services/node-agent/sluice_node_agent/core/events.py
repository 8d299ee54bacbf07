"""
What a node agent's core hears and says, besides the exchange that all cores share.

Every instruction carries a `token`; its result comes back as exactly one event with the same token. At most one
instruction that names a `gpu` is out per GPU at any moment, so an executor needs no lock; different GPUs run in
parallel. Instructions about an MPS daemon name its `home`; at most one is out per home.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sluice.contracts.exchange import ExchangeEvent, ExchangeInstruction, Ticked
from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import ContainerDevices, GpuReport, Mode
from sluice_node_agent.core.records import MpsLimits, Record, TicketRecord


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
class FoundHome:
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
class Mark:
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
    `tickets` are the ticket directories found, `witnesses` what they say, where the journal was lost. `homes` are the
    homes whose directories were found, and below `mps_root` each home has its own: `<mps_root>/<home>/pipe` and
    `.../log`. `marks` are the places where instances are ours. `modes` is how this node can hand out devices.
    """

    boot_id: str
    endpoint: str
    gpus: tuple[GpuReport, ...]
    records: tuple[Record, ...] = ()
    journal_problem: str = ""
    driver_version: str = ""
    tickets: tuple[str, ...] = ()
    witnesses: tuple[FoundTicket, ...] = ()
    toolkit_version: str = ""
    modes: tuple[Mode, ...] = ("exclusive",)
    mps_root: str = ""
    homes: tuple[FoundHome, ...] = ()
    marks: tuple[Mark, ...] = ()
    time_quota: bool = False
    """Whether the client library of the time quota is here, so that fractional shares are held to their time."""
    version: str = ""
    """Of Sluice, for people."""


@dataclass(frozen=True, slots=True)
class GpuTroubled:
    """The driver told of an error of a GPU by itself (Xid): it must be read anew."""

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
class TicketRefused:
    """A ticket could not be made or removed."""

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
    | DeviceRefused
    | TicketMade
    | TicketRemoved
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
    DeviceRefused,
    TicketMade,
    TicketRemoved,
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
Event = ExchangeEvent | Ticked | AgentStarted | GpuTroubled | QuarantineReleased | Result


# -- instructions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveJournal:
    """Put a record on disk, in the order of these instructions -> JournalSaved."""

    token: int
    record: Record


@dataclass(frozen=True, slots=True)
class CreateGpuInstance:
    """Create at exactly this placement -> GpuInstanceCreated. `start` and `size` are memory slices."""

    token: int
    gpu: GpuUuid
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class CreateComputeInstance:
    """Create the compute instance that fills the GPU instance -> ComputeInstanceCreated."""

    token: int
    gpu: GpuUuid
    gi_id: int


@dataclass(frozen=True, slots=True)
class VerifyInstance:
    """Read back: this GPU instance has this profile, placement and MIG device -> InstanceVerified."""

    token: int
    gpu: GpuUuid
    gi_id: int
    profile_id: int
    start: int
    size: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyComputeInstance:
    """
    Destroy the compute instance if its MIG device is `uuid` -> ComputeInstanceDestroyed.

    Refused with NOT_FOUND when there is none, with DIFFERENT when there is another.
    """

    token: int
    gpu: GpuUuid
    gi_id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyGpuInstance:
    """
    Destroy the GPU instance if it sits at this placement -> GpuInstanceDestroyed.

    Refused with NOT_FOUND when there is none, with DIFFERENT when it sits elsewhere.
    """

    token: int
    gpu: GpuUuid
    gi_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadGpu:
    """Read one GPU -> GpuRead."""

    token: int
    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class ListHolders:
    """
    List all processes on a device -> HoldersListed.

    `uuid` is a MIG device's, or the GPU's own for all processes on it. A device that is not there has none.
    """

    token: int
    gpu: GpuUuid
    uuid: str


@dataclass(frozen=True, slots=True)
class SetComputeMode:
    """
    Put a whole GPU in compute mode EXCLUSIVE_PROCESS, or back in DEFAULT -> ComputeModeSet.

    In the first, only one process may have a context: the MPS server. Else a client that does not find its daemon runs
    beside it, unbounded.
    """

    token: int
    gpu: GpuUuid
    exclusive_process: bool


@dataclass(frozen=True, slots=True)
class StartMps:
    """
    Start the daemon of a home, or find it running -> MpsStarted.

    `device` is the UUID of the GPU or MIG device. The limits are set and read back, and the server for `uid` is
    started, before any client can be served.
    """

    token: int
    home: HomeId
    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    limits: MpsLimits


@dataclass(frozen=True, slots=True)
class SetMpsLimits:
    """Change the limits for clients that connect from now on -> MpsLimitsSet."""

    token: int
    home: HomeId
    limits: MpsLimits


@dataclass(frozen=True, slots=True)
class SetQuotas:
    """Serve exactly these tenants' time in a home, each in its own size -> QuotasSet. MpsRefused where it cannot be."""

    token: int
    home: HomeId
    tenants: tuple[QuotaTenant, ...]


@dataclass(frozen=True, slots=True)
class WatchMps:
    """Look how a daemon is -> MpsSeen. `pid` and `started_at` as in MpsStarted."""

    token: int
    home: HomeId
    pid: int
    started_at: int
    uid: int


@dataclass(frozen=True, slots=True)
class TerminateMpsClients:
    """Have the server let go of these clients -> MpsClientsTerminated. Those that are not its clients are fine."""

    token: int
    home: HomeId
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopMps:
    """
    Have the daemon quit, make sure, and remove its directories -> MpsStopped. Fine when there is none.

    `pid` is 0 when it is not known.
    """

    token: int
    home: HomeId
    pid: int
    started_at: int


@dataclass(frozen=True, slots=True)
class MakeTicket:
    """
    Make the directory that lets the pod's containers start -> TicketMade. Making it twice is once.

    `record` is kept in it, for the case that the journal is lost.
    """

    token: int
    ticket: str
    record: TicketRecord
    containers: tuple[ContainerDevices, ...]

    @property
    def allocation(self) -> AllocationId:
        """Whose ticket it is."""
        return self.record.booking.allocation

    @property
    def owner(self) -> str:
        """UID of the pod that it is for."""
        return self.record.booking.owner


@dataclass(frozen=True, slots=True)
class RemoveTicket:
    """Remove the directory -> TicketRemoved. Removing what is not there is fine."""

    token: int
    ticket: str


GpuInstruction = (
    CreateGpuInstance
    | CreateComputeInstance
    | VerifyInstance
    | DestroyComputeInstance
    | DestroyGpuInstance
    | ReadGpu
    | ListHolders
    | SetComputeMode
)
GPU_INSTRUCTIONS = (
    CreateGpuInstance,
    CreateComputeInstance,
    VerifyInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ReadGpu,
    ListHolders,
    SetComputeMode,
)
MpsInstruction = StartMps | SetMpsLimits | SetQuotas | WatchMps | TerminateMpsClients | StopMps
OwnInstruction = SaveJournal | GpuInstruction | MpsInstruction | MakeTicket | RemoveTicket
Instruction = ExchangeInstruction | OwnInstruction
