"""Instructions of a node agent's core to its shell, one type per step, besides those that all cores share. The result
of each comes back as one event with the same `token`. At most one instruction per `gpu` and per `home` is in flight, so
an executor needs no lock."""

import msgspec

from sluice.contracts.bus.events import BusInstruction
from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import ContainerDevices
from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.journal_records import MpsLimits, Record, TicketRecord


class OwnInstruction(msgspec.Struct, frozen=True):
    """An instruction that has a result."""

    token: int


class GpuInstruction(OwnInstruction, frozen=True):
    """About one GPU."""

    gpu: GpuUuid


class MpsInstruction(OwnInstruction, frozen=True):
    """About the MPS daemon of one home."""

    home: HomeId


class SaveJournal(OwnInstruction, frozen=True):
    """Put a record on disk, in the order of these instructions -> JournalSaved."""

    record: Record


class CreateGpuInstance(GpuInstruction, frozen=True):
    """Create at exactly this placement -> GpuInstanceCreated. `start` and `size` are memory slices."""

    profile_id: int
    start: int
    size: int


class CreateComputeInstance(GpuInstruction, frozen=True):
    """Create the compute instance that fills the GPU instance -> ComputeInstanceCreated."""

    gi_id: int


class VerifyInstance(GpuInstruction, frozen=True):
    """Read back profile, placement and MIG device -> InstanceVerified. Refused with NOT_FOUND when no instance of this
    profile is at this place, with DIFFERENT when its MIG device is another one or gone."""

    gi_id: int
    profile_id: int
    start: int
    size: int
    uuid: str


class DestroyComputeInstance(GpuInstruction, frozen=True):
    """Destroy it if its MIG device is `uuid` -> ComputeInstanceDestroyed. Refused with NOT_FOUND, or DIFFERENT."""

    gi_id: int
    uuid: str


class DestroyGpuInstance(GpuInstruction, frozen=True):
    """Destroy it if it sits at this placement -> GpuInstanceDestroyed. Refused with NOT_FOUND, or DIFFERENT."""

    gi_id: int
    start: int
    size: int


class ReadGpu(GpuInstruction, frozen=True):
    """Read one GPU -> GpuRead."""


class ListHolders(GpuInstruction, frozen=True):
    """List all processes on a MIG device, or with its own UUID on a whole GPU -> HoldersListed, maybe none."""

    uuid: str


class ListTenants(OwnInstruction, frozen=True):
    """List all processes of the pod with UID `owner`, also those without a device -> TenantsListed, or TenantsUnseen.
    `claims` are UIDs of ResourceClaims of other pods too: the processes of all their containers are listed."""

    owner: str
    claims: tuple[str, ...] = ()
    homes: tuple[HomeId, ...] = ()
    """If any are named, only processes that have one of them mounted."""


class SetComputeMode(GpuInstruction, frozen=True):
    """Put a whole GPU in compute mode EXCLUSIVE_PROCESS, or back in DEFAULT -> ComputeModeSet. In the first only the
    MPS server has a context: a client without its daemon would run beside it, without limits."""

    exclusive_process: bool


class StartMps(MpsInstruction, frozen=True):
    """Start the daemon of a home, or find it running -> MpsStarted. `device` is a GPU's or MIG device's UUID. Limits
    are read back and the server for `uid` is started before any client is served."""

    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    limits: MpsLimits


class SetMpsLimits(MpsInstruction, frozen=True):
    """Change the limits for clients that connect from now on -> MpsLimitsSet."""

    limits: MpsLimits


class SetQuotas(MpsInstruction, frozen=True):
    """Enforce the time of exactly these tenants in a home, each with its size -> QuotasSet, or MpsRefused."""

    tenants: tuple[QuotaTenant, ...]


class WatchMps(MpsInstruction, frozen=True):
    """Poll a daemon -> MpsSeen. `pid` and `started_at` as in MpsStarted."""

    pid: int
    started_at: int
    uid: int


class TerminateMpsClients(MpsInstruction, frozen=True):
    """Have the server disconnect these clients, once -> MpsClientsTerminated. They stay until their process ends."""

    pids: tuple[int, ...]


class StopMps(MpsInstruction, frozen=True):
    """Stop the daemon (`pid` 0: not known), verify that, and remove its directories -> MpsStopped. Idempotent."""

    pid: int
    started_at: int


class MakeTicket(OwnInstruction, frozen=True):
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


class RemoveTicket(OwnInstruction, frozen=True):
    """Remove the directory -> TicketRemoved. Idempotent."""

    ticket: str


class CompareTickets(OwnInstruction, frozen=True):
    """Compare these tickets with what was ordered -> TicketsCompared, or TicketRefused."""

    tickets: tuple[MakeTicket, ...]
    """Their own tokens are ignored."""


class CdiPart(msgspec.Struct, frozen=True):
    """One GPU or MIG device of a CDI device. `gi_id` is its GPU instance's; None for a whole GPU."""

    gpu: GpuUuid
    uuid: str
    gi_id: int | None = None


class CdiDevice(msgspec.Struct, frozen=True):
    """What one request of a claim hands over. `shared`: its containers are found by the claim (`ListTenants`)."""

    name: str
    container: ContainerDevices
    parts: tuple[CdiPart, ...]
    shared: bool = False
    ticket: str = ""
    """Its slice's, which a container with a share then names in its environment."""


class WriteCdi(OwnInstruction, frozen=True):
    """Put a claim's CDI file in place, whatever is there -> CdiWritten, or CdiRefused. In order per claim."""

    claim: str
    devices: tuple[CdiDevice, ...]


class RemoveCdi(OwnInstruction, frozen=True):
    """Remove a claim's CDI file -> CdiRemoved, or CdiRefused. Idempotent. In order per claim."""

    claim: str


class CompareCdi(OwnInstruction, frozen=True):
    """Compare these CDI files with what was ordered -> CdiCompared, or CdiRefused."""

    files: tuple[WriteCdi, ...]
    """Their own tokens are ignored."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device of a prepared claim. `request` is the base name, as in the claim's spec; `cdi` is qualified."""

    request: str
    name: str
    cdi: str


class AnswerCall(msgspec.Struct, frozen=True):
    """Answer a kubelet's call: with its devices, or with an `error`. It has no result."""

    call: int
    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


TicketInstruction = MakeTicket | RemoveTicket | CompareTickets
CdiInstruction = WriteCdi | RemoveCdi | CompareCdi
Instruction = BusInstruction | OwnInstruction | AnswerCall
