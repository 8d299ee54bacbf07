"""
What a node agent's core hears and says, besides the exchange that all cores share.

Every instruction carries a `token`; its result comes back as exactly one event with the same token. At most one
instruction that names a `gpu` is out per GPU at any moment, so an executor needs no lock; different GPUs run in
parallel.
"""

from dataclasses import dataclass
from enum import StrEnum

from sluice.contracts.exchange import ExchangeEvent, ExchangeInstruction, Ticked
from sluice.contracts.ids import AllocationId, GpuUuid
from sluice.contracts.messages import ContainerDevices, GpuReport
from sluice_node_agent.core.records import Record


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


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a device. `owner` is the UID of its pod, empty when it belongs to none that is known."""

    pid: int
    owner: str
    name: str = ""


# -- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """
    The first event of every life: what the journal says and what is on the devices now.

    `journal_problem` is empty, or says in words why the journal is missing or cannot be trusted; `records` are then
    empty. `gpus` carry all instances found, with `allocation` None and `creatable` empty: both are the core's to say.
    `tickets` are the ticket directories found.
    """

    boot_id: str
    endpoint: str
    gpus: tuple[GpuReport, ...]
    records: tuple[Record, ...] = ()
    journal_problem: str = ""
    driver_version: str = ""
    tickets: tuple[str, ...] = ()


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
)
Event = ExchangeEvent | Ticked | AgentStarted | Result


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
class MakeTicket:
    """Make the directory that lets the pod's containers start -> TicketMade. Making it twice is once."""

    token: int
    ticket: str
    allocation: AllocationId
    owner: str
    containers: tuple[ContainerDevices, ...]


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
)
GPU_INSTRUCTIONS = (
    CreateGpuInstance,
    CreateComputeInstance,
    VerifyInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ReadGpu,
    ListHolders,
)
OwnInstruction = SaveJournal | GpuInstruction | MakeTicket | RemoveTicket
Instruction = ExchangeInstruction | OwnInstruction
