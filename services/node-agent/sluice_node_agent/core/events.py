"""Events of a node agent's core, besides the bus events that all cores share, and the facts that they carry."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

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
"""`compute`: has a context on the device. `mps`: an MPS server. `file`: only has its files open, as monitoring has."""


class Holder(msgspec.Struct, frozen=True):
    """A process on a device. `owner` is the UID of its pod, empty when no pod is known for it."""

    pid: int
    owner: str
    name: str = ""
    kind: HolderKind = "compute"


class PodProcess(msgspec.Struct, frozen=True):
    """A process in the cgroup of a pod. `in_kernel`: in state D, where no signal ends it. `container` names its
    container's cgroup; `ticket` is what its environment names, where homes were asked for. Empty: unknown, or none."""

    pid: int
    name: str = ""
    in_kernel: bool = False
    container: str = ""
    ticket: str = ""


class FoundMpsHome(msgspec.Struct, frozen=True):
    """A home found at the start, with the trust domain written there. `pid` and `started_at` are its daemon's, or 0."""

    home: HomeId
    gpu: GpuUuid
    device: str
    namespace: str
    uid: int
    pid: int = 0
    started_at: int = 0


class OwnershipMark(msgspec.Struct, frozen=True):
    """A place where we created an instance in this boot, or were about to. `size` 0: a whole GPU set to serve MPS."""

    gpu: GpuUuid
    start: int
    size: int


class FoundTicket(msgspec.Struct, frozen=True):
    """What a ticket found at the start contains: the copy of its slice's record, or why it has none."""

    ticket: str
    record: TicketRecord | None = None
    problem: str = ""
    is_half: bool = False
    """It was being created or removed: no container finds it."""


class MpsClient(msgspec.Struct, frozen=True):
    """A client process of an MPS server. `owner` as in `Holder`."""

    pid: int
    owner: str


class QuotaTenant(msgspec.Struct, frozen=True):
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


class QuotaSeen(msgspec.Struct, frozen=True):
    """The state of a home's token scheduler. `greeted`: pids of the processes that sent HELLO."""

    alive: bool
    greeted: tuple[int, ...] = ()


class AgentStarted(msgspec.Struct, frozen=True):
    """The first event of every run: what the journal contains and what is on the devices now. `journal_problem`: why
    the journal is missing or untrusted (`records` are then empty). `gpus` carry all instances found, with `allocation`
    None and `creatable` empty. `tickets` are those found, `found_tickets` their content where the journal was lost.
    `homes` are below `mps_root`, each with `pipe` and `log`. `marks` are the places where instances are ours;
    `unmarked` those where one may be ours without a mark, None where that is any. `nameless` are GPUs that could not
    read their UUID: index to reason."""

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
    nameless: Mapping[int, str] = {}
    has_pods: bool = False
    """Whether a kubelet may run pods on this machine: processes of a pod are then found through its cgroup."""
    why_unseen: str = ""
    time_quota: bool = False
    """Whether the time quota's client library is installed, so that the time of fractional shares is enforced."""
    cdi_claims: tuple[str, ...] = ()
    """UIDs of the ResourceClaims that CDI files of ours were found of."""
    hand_over: bool = False
    version: str = ""
    """Of Sluice, for display."""


class GpuTroubled(msgspec.Struct, frozen=True):
    """The driver reported an error of a GPU (Xid), or its UUID can be read at last: read it again."""

    gpu: GpuUuid


class QuarantineReleased(msgspec.Struct, frozen=True):
    """An operator wants a slice retried. `ignore_holders`: the processes on its devices are not its tenant's."""

    allocation: AllocationId
    ignore_holders: bool = False


class ClaimAsked(msgspec.Struct, frozen=True):
    """A kubelet's call about the ResourceClaim with this UID, called `namespace/name`."""

    call: int
    claim: str
    name: str


class PrepareAsked(ClaimAsked, frozen=True):
    """The kubelet wants a claim's devices -> `AnswerCall` within `AgentConfig.prepare_within_s`, for each call."""


class UnprepareAsked(ClaimAsked, frozen=True):
    """The containers of all pods with a ResourceClaim have ended, says the kubelet -> `AnswerCall`."""


class HandOverChanged(msgspec.Struct, frozen=True):
    """Whether the kubelet hands devices over by ResourceClaim; `why` not, for operators, or empty."""

    able: bool
    why: str = ""


class Result(msgspec.Struct, frozen=True):
    """The result of an instruction, with its token."""

    token: int


class JournalSaved(Result, frozen=True):
    """The record is on disk."""


class GpuInstanceCreated(Result, frozen=True):
    """The GPU instance exists, under an id that the driver chose."""

    gi_id: int


class ComputeInstanceCreated(Result, frozen=True):
    """The compute instance exists; `uuid` is the MIG device's."""

    uuid: str


class InstanceVerified(Result, frozen=True):
    """The instance was read back as it was ordered."""


class ComputeInstanceDestroyed(Result, frozen=True):
    """The compute instance no longer exists."""


class GpuInstanceDestroyed(Result, frozen=True):
    """The GPU instance no longer exists."""


class GpuRead(Result, frozen=True):
    """The current state of one GPU (as in `AgentStarted.gpus`; a lost GPU is unhealthy, with its last known facts)."""

    report: GpuReport


class HoldersListed(Result, frozen=True):
    """All processes on one device."""

    holders: tuple[Holder, ...]


class TenantsListed(Result, frozen=True):
    """All processes of one pod, with or without a device."""

    processes: tuple[PodProcess, ...]


class TenantsUnseen(Result, frozen=True):
    """The processes of a pod could not be listed: nothing follows from that."""

    message: str


class DeviceRefused(Result, frozen=True):
    """A device instruction failed."""

    kind: DeviceErrorKind
    message: str


class TicketMade(Result, frozen=True):
    """The ticket's directory exists."""


class TicketRemoved(Result, frozen=True):
    """The ticket's directory does not exist."""


class TicketsCompared(Result, frozen=True):
    """Which of the named tickets are missing or differ from what was ordered."""

    wrong: tuple[str, ...]


class TicketRefused(Result, frozen=True):
    """A ticket could not be created or removed, or tickets could not be read."""

    message: str


class CdiWritten(Result, frozen=True):
    """The claim's CDI file is as ordered."""


class CdiRemoved(Result, frozen=True):
    """The claim has no CDI file."""


class CdiCompared(Result, frozen=True):
    """The claims whose CDI file is missing or differs from what was ordered."""

    wrong: tuple[str, ...]


class CdiRefused(Result, frozen=True):
    """A CDI file could not be written or removed, or files could not be read."""

    message: str


class ComputeModeSet(Result, frozen=True):
    """The GPU is in the compute mode that was ordered."""


class MpsStarted(Result, frozen=True):
    """The daemon answers, its server is of the right user, and its limits were read back as ordered."""

    pid: int
    started_at: int


class MpsLimitsSet(Result, frozen=True):
    """The limits were read back as ordered."""


class QuotasSet(Result, frozen=True):
    """The token scheduler has the ordered tenants, and their sockets exist."""


class MpsSeen(Result, frozen=True):
    """The state of a daemon. `alive`: its process runs; one that does not answer is MpsRefused. `fault`: its server's,
    or empty. `waiting` are uids whose clients wait for it although it serves another uid."""

    alive: bool
    fault: str = ""
    clients: tuple[MpsClient, ...] = ()
    waiting: tuple[int, ...] = ()
    quota: QuotaSeen | None = None
    """None where no time quota is enforced in this home."""


class MpsClientsTerminated(Result, frozen=True):
    """The server has disconnected the named clients."""


class MpsStopped(Result, frozen=True):
    """The daemon's processes and directories are gone."""


class MpsRefused(Result, frozen=True):
    """An instruction about a daemon failed. The daemon may or may not run."""

    message: str


class SlicesIdled(msgspec.Struct, frozen=True):
    """Since when slices idle that do so for minutes, in unix seconds; all others are used, or that is unknown."""

    since: Mapping[AllocationId, int]


NodeEvent = GpuTroubled | QuarantineReleased | SlicesIdled
KubeletEvent = PrepareAsked | UnprepareAsked | HandOverChanged
Event = BusEvent | Ticked | AgentStarted | NodeEvent | KubeletEvent | Result
