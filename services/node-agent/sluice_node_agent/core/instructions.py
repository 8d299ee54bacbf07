"""
Instructions of a node agent's core to its shell, one type per step, besides those that all cores share. The result of
each comes back as one event with the same `token`. At most one instruction per `gpu` and per `home` is in flight, so an
executor needs no lock.
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
    Read back profile, placement and MIG device -> InstanceVerified. Refused with NOT_FOUND when no instance of this
    profile is at this place, with DIFFERENT when its MIG device is another one or gone.
    """

    gi_id: int
    profile_id: int
    start: int
    size: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyComputeInstance(GpuInstruction):
    """Destroy it if its MIG device is `uuid` -> ComputeInstanceDestroyed. Refused with NOT_FOUND, or DIFFERENT."""

    gi_id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class DestroyGpuInstance(GpuInstruction):
    """Destroy it if it sits at this placement -> GpuInstanceDestroyed. Refused with NOT_FOUND, or DIFFERENT."""

    gi_id: int
    start: int
    size: int


class ReadGpu(GpuInstruction):
    """Read one GPU -> GpuRead."""


@dataclass(frozen=True, slots=True)
class ListHolders(GpuInstruction):
    """List all processes on a MIG device, or with its own UUID on a whole GPU -> HoldersListed, maybe none."""

    uuid: str


@dataclass(frozen=True, slots=True)
class ListTenants(OwnInstruction):
    """
    List all processes of the pod with UID `owner`, also those without a device -> TenantsListed, or TenantsUnseen.
    `claims` are UIDs of ResourceClaims of other pods too: the processes of all their containers are listed.
    """

    owner: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetComputeMode(GpuInstruction):
    """
    Put a whole GPU in compute mode EXCLUSIVE_PROCESS, or back in DEFAULT -> ComputeModeSet. In the first only the MPS
    server has a context: a client without its daemon would run beside it, without limits.
    """

    exclusive_process: bool


@dataclass(frozen=True, slots=True)
class StartMps(MpsInstruction):
    """
    Start the daemon of a home, or find it running -> MpsStarted. `device` is a GPU's or MIG device's UUID. Limits are
    read back and the server for `uid` is started before any client is served.
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
    """Have the server disconnect these clients, once -> MpsClientsTerminated. They stay until their process ends."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopMps(MpsInstruction):
    """Stop the daemon (`pid` 0: not known), verify that, and remove its directories -> MpsStopped. Idempotent."""

    pid: int
    started_at: int


@dataclass(frozen=True, slots=True)
class MakeTicket(OwnInstruction):
    """Create the directory that lets the pod's containers start, with a copy of `record` -> TicketMade. Idempotent."""

    ticket: str
    record: TicketRecord
    containers: tuple[ContainerDevices, ...]

    @property
    def allocation(self) -> AllocationId:
        return self.record.booking.allocation

    @property
    def owner(self) -> str:
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
    """What one request of a claim hands over. `shared`: its containers are found by the claim (`ListTenants`)."""

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
