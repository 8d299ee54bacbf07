"""
Instructions of a node agent's core to its shell, one type per step, besides those that all cores share.

Every instruction carries a `token`; its result comes back as exactly one event with the same token. At most one
instruction that names a `gpu` is in flight per GPU, so an executor needs no lock; different GPUs run in parallel.
Instructions about an MPS daemon name its `home`; at most one is in flight per home.
"""

from dataclasses import dataclass

from sluice.contracts.bus.events import BusInstruction
from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import ContainerDevices
from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.journal_records import MpsLimits, Record, TicketRecord


@dataclass(frozen=True, slots=True)
class OwnInstruction:
    """An instruction that has a result."""

    token: int


@dataclass(frozen=True, slots=True)
class GpuInstruction(OwnInstruction):
    """About one GPU."""

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class MpsInstruction(OwnInstruction):
    """About the MPS daemon of one home."""

    home: HomeId


@dataclass(frozen=True, slots=True)
class SaveJournal(OwnInstruction):
    """Put a record on disk, in the order of these instructions -> JournalSaved."""

    record: Record


@dataclass(frozen=True, slots=True)
class CreateGpuInstance(GpuInstruction):
    """Create at exactly this placement -> GpuInstanceCreated. `start` and `size` are memory slices."""

    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class CreateComputeInstance(GpuInstruction):
    """Create the compute instance that fills the GPU instance -> ComputeInstanceCreated."""

    gi_id: int


@dataclass(frozen=True, slots=True)
class VerifyInstance(GpuInstruction):
    """
    Read back: this GPU instance has this profile, placement and MIG device -> InstanceVerified.

    Refused with NOT_FOUND when this place has no instance of this profile, with DIFFERENT when its MIG device is
    another one or gone.
    """

    gi_id: int
    profile_id: int
    start: int
    size: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyComputeInstance(GpuInstruction):
    """
    Destroy the compute instance if its MIG device is `uuid` -> ComputeInstanceDestroyed.

    Refused with NOT_FOUND when there is none, with DIFFERENT when there is another.
    """

    gi_id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyGpuInstance(GpuInstruction):
    """
    Destroy the GPU instance if it sits at this placement -> GpuInstanceDestroyed.

    Refused with NOT_FOUND when there is none, with DIFFERENT when it sits elsewhere.
    """

    gi_id: int
    start: int
    size: int


class ReadGpu(GpuInstruction):
    """Read one GPU -> GpuRead."""


@dataclass(frozen=True, slots=True)
class ListHolders(GpuInstruction):
    """
    List all processes on a device -> HoldersListed.

    `uuid` is a MIG device's, or the GPU's own for all processes on it. A missing device has none.
    """

    uuid: str


@dataclass(frozen=True, slots=True)
class ListTenants(OwnInstruction):
    """
    List all processes of a pod, also those that hold no device (yet) -> TenantsListed, or TenantsUnseen.

    `owner` is the pod's UID. A pod without a cgroup on this machine has none. `claims` are UIDs of ResourceClaims that
    other pods use as well: the processes of all their containers are listed, too.
    """

    owner: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetComputeMode(GpuInstruction):
    """
    Put a whole GPU in compute mode EXCLUSIVE_PROCESS, or back in DEFAULT -> ComputeModeSet.

    EXCLUSIVE_PROCESS lets only one process have a context: the MPS server. Without it, a client that does not find its
    daemon would run beside it, without limits.
    """

    exclusive_process: bool


@dataclass(frozen=True, slots=True)
class StartMps(MpsInstruction):
    """
    Start the daemon of a home, or find it running -> MpsStarted.

    `device` is the UUID of the GPU or MIG device. The limits are set and read back, and the server for `uid` is
    started, before any client can be served.
    """

    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    limits: MpsLimits


@dataclass(frozen=True, slots=True)
class SetMpsLimits(MpsInstruction):
    """Change the limits for clients that connect from now on -> MpsLimitsSet."""

    limits: MpsLimits


@dataclass(frozen=True, slots=True)
class SetQuotas(MpsInstruction):
    """Enforce the time of exactly these tenants in a home, each with its size -> QuotasSet, or MpsRefused."""

    tenants: tuple[QuotaTenant, ...]


@dataclass(frozen=True, slots=True)
class WatchMps(MpsInstruction):
    """Poll a daemon -> MpsSeen. `pid` and `started_at` as in MpsStarted."""

    pid: int
    started_at: int
    uid: int


@dataclass(frozen=True, slots=True)
class TerminateMpsClients(MpsInstruction):
    """
    Have the server disconnect these clients -> MpsClientsTerminated. Pids that are not its clients are ignored.

    A disconnected client can no longer compute, and stays until its process ends. Each is disconnected once.
    """

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopMps(MpsInstruction):
    """
    Stop the daemon, verify that it ended, and remove its directories -> MpsStopped. Succeeds when there is none.

    `pid` is 0 when it is not known.
    """

    pid: int
    started_at: int


@dataclass(frozen=True, slots=True)
class MakeTicket(OwnInstruction):
    """
    Create the directory that lets the pod's containers start -> TicketMade. Idempotent.

    `record` is kept in it, for the case that the journal is lost.
    """

    ticket: str
    record: TicketRecord
    containers: tuple[ContainerDevices, ...]

    @property
    def allocation(self) -> AllocationId:
        """The allocation that the ticket belongs to."""
        return self.record.booking.allocation

    @property
    def owner(self) -> str:
        """UID of the pod that it is for."""
        return self.record.booking.owner


@dataclass(frozen=True, slots=True)
class RemoveTicket(OwnInstruction):
    """Remove the directory -> TicketRemoved. Idempotent."""

    ticket: str


@dataclass(frozen=True, slots=True)
class CompareTickets(OwnInstruction):
    """Compare these tickets with what was ordered -> TicketsCompared, or TicketRefused."""

    tickets: tuple[MakeTicket, ...]
    """Their own tokens are ignored."""


@dataclass(frozen=True, slots=True)
class CdiPart:
    """One GPU or MIG device of a CDI device. `gi_id` is its GPU instance's; None for a whole GPU."""

    gpu: GpuUuid
    uuid: str
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """
    What one request of a claim hands over. `name` is its device's in the claim's allocation.

    `shared`: its containers are to be found by the claim, as not all of their pods are known (`ListTenants`).
    """

    name: str
    container: ContainerDevices
    parts: tuple[CdiPart, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class WriteCdi(OwnInstruction):
    """Put a claim's CDI file in place, whatever is there -> CdiWritten, or CdiRefused. In order per claim."""

    claim: str
    devices: tuple[CdiDevice, ...]


@dataclass(frozen=True, slots=True)
class RemoveCdi(OwnInstruction):
    """Remove a claim's CDI file -> CdiRemoved, or CdiRefused. Idempotent. In order per claim."""

    claim: str


@dataclass(frozen=True, slots=True)
class CompareCdi(OwnInstruction):
    """Compare these CDI files with what was ordered -> CdiCompared, or CdiRefused."""

    files: tuple[WriteCdi, ...]
    """Their own tokens are ignored."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a prepared claim. `request` is the base name, as in the claim's spec; `cdi` is qualified."""

    request: str
    name: str
    cdi: str


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Answer a kubelet's call: with its devices, or with an `error`. It has no result."""

    call: int
    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


TicketInstruction = MakeTicket | RemoveTicket | CompareTickets
CdiInstruction = WriteCdi | RemoveCdi | CompareCdi
Instruction = BusInstruction | OwnInstruction | AnswerCall
