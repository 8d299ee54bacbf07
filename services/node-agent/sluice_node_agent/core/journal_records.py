"""Records of a node agent's journal: what it needs to continue after a crash, and what devices and ledger do not tell
better. A record is saved before the device step that it announces, and again with that step's result. What must survive
the node's own crash is synced to disk before anything follows from it (`must_outlive_boot`, ADR 0042)."""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, HomeId, NodeName, RequestId
from sluice.contracts.messages import Booking, DeviceGrant

DeviceStep = Literal["planned", "intended", "made"]
"""`intended`: an instance may exist on the GPU from now on. `made`: it was read back as ordered."""

Phase = Literal["planned", "making", "ready", "undoing", "failed", "degraded", "unmaking"]
"""planned -> making -> ready; making -> undoing -> failed, or degraded when it had been ready before; a Revoke leads
from every phase to unmaking, which ends in a tombstone."""

SharedDevicePhase = Literal["making", "ready", "undoing", "failed", "unmaking"]
"""making -> ready -> making when its daemon died; making -> undoing -> failed; unmaking ends in SharedDeviceGone."""


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one device of a booking. A GPU granted whole has no `gi_id`, and its own UUID."""

    step: DeviceStep = "planned"
    gi_id: int | None = None
    uuid: str = ""
    """The MIG device's, as soon as its compute instance exists."""
    daemon_restarts: int = 0
    """Of a share: how often its home's MPS daemon had been restarted when it joined."""
    found: bool = False
    """The instance existed before its tenant: an administrator's, which is never destroyed."""


class ResizeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a resize of a ready slice's shares. Its booking has the new sizes."""

    counts: tuple[DeviceGrant, ...] = ()
    """The sizes that it counts as until nothing larger is used; empty when its shares only grow."""
    renewed: bool = False
    """It was made smaller and has a new ticket; the old one is stale."""
    told: bool = False
    """The homes' limits are set, and its ticket and its status show the new sizes."""
    clients: tuple[int, ...] | None = None
    """Processes that may use the old size; None before its homes were polled again."""


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True, tag="slice"):
    """One slice that is not gone: its order and its progress."""

    booking: Booking
    revision: int
    phase: Phase
    devices: tuple[DeviceRecord, ...]
    """In the order of `booking.devices`."""
    after: tuple[AllocationId, ...] = ()
    evict: bool = False
    """Whether the pods of `displaces` are evicted. Kept only for rebuilding the ledger."""
    adjusting: ResizeRecord | None = None
    boot_id: str = ""
    """The boot in which its instances were created: they do not survive it."""
    ticket: str = ""
    stale_tickets: tuple[str, ...] = ()
    """Tickets of devices that are gone: removed before anything is created again."""
    prepared: tuple[str, ...] = ()
    """UIDs of its ResourceClaims that a pod may have: prepared in this boot, not unprepared since."""
    cdi_files: tuple[str, ...] = ()
    """UIDs of its ResourceClaims that may have a CDI file."""
    ignores_holders: bool = False
    """An operator confirmed that processes found on its devices are not its tenant's."""
    lost: bool = False
    """It had been ready, and its devices vanished (reboot, reset)."""
    cause: str = ""
    error: str = ""
    message: str = ""

    @property
    def revoked(self) -> bool:
        """Whether it is being destroyed by order."""
        return self.phase == "unmaking"


class TicketRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The second copy of a ready slice's record, in its ticket: only facts that are constant while that exists."""

    booking: Booking
    revision: int
    boot_id: str
    devices: tuple[DeviceRecord, ...]
    """In the order of `booking.devices`. Of a share, `gi_id`, `uuid` and `found` are its home's."""
    counts: tuple[DeviceGrant, ...] = ()
    """As in `ResizeRecord`."""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, tag="tombstone"):
    """A slice that is gone, remembered so that a late order can never bring it back."""

    allocation: AllocationId
    request: RequestId
    revision: int
    cause: str


class ForgottenTombstone(msgspec.Struct, frozen=True, kw_only=True, tag="forgotten"):
    """A tombstone that no order can refer to any more."""

    allocation: AllocationId


class MpsLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an MPS server for each client: percent of the device's SMs, and its memory in MiB."""

    active_thread_percentage: int
    memory_mib: int


class SharedDeviceRecord(msgspec.Struct, frozen=True, kw_only=True, tag="home"):
    """A home: the device of several tenants of one trust domain, and its MPS daemon. `profile` None: a whole GPU."""

    home: HomeId
    gpu: GpuUuid
    profile: str | None
    start: int
    size: int
    namespace: str
    uid: int
    phase: SharedDevicePhase
    boot_id: str
    device: DeviceRecord = DeviceRecord()
    """A whole GPU has no `gi_id`, and its own UUID as soon as it was found free."""
    daemon: bool = False
    """An MPS daemon may be running from now on."""
    pid: int = 0
    started_at: int = 0
    """When that process began, in clock ticks since boot (/proc/<pid>/stat field 22): tells it from a later one."""
    limits: MpsLimits | None = None
    """The limits last set and read back; None while they change."""
    restarts: int = 0
    inherited: bool = False
    """Its daemon was taken over without a journal: until a poll finds clients of known tenants only, no tenant joins
    and the daemon is not stopped. A slice that was being destroyed then has no ticket to name its pod."""
    error: str = ""
    message: str = ""


class SharedDeviceGone(msgspec.Struct, frozen=True, kw_only=True, tag="home-gone"):
    """A home that is gone."""

    home: HomeId


class WarmRecord(msgspec.Struct, frozen=True, kw_only=True, tag="warm"):
    """A GPU instance of ours without compute instance or tenant, kept for the next grant of the same place."""

    gpu: GpuUuid
    gi_id: int
    profile: str
    start: int
    size: int
    boot_id: str


class WarmGone(msgspec.Struct, frozen=True, kw_only=True, tag="warm-gone"):
    """A slice took it, or it was destroyed."""

    gpu: GpuUuid
    gi_id: int


class UnclaimedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that was on a GPU when the journal was found lost: ours only if the ledger says so."""

    gpu: GpuUuid
    gi_id: int
    uuid: str = ""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="node"):
    """Whose journal this is, and the counters that never go back."""

    node: NodeName
    boot_id: str
    generation_upto: int
    """No generation above this was ever published."""
    unclaimed: tuple[UnclaimedInstance, ...] = ()
    unseen: tuple[GpuUuid, ...] = ()
    """GPUs that did not answer when the journal was found lost: their content is unknown."""
    seen: tuple[GpuUuid, ...] | None = None
    """GPUs with known content, where others could not read their UUID then; None where all could."""
    tickets: tuple[str, ...] = ()
    """Tickets that existed then and that no record names: the next run uses them too."""
    hands_over: bool = False
    """Whether the kubelet handed devices over by ResourceClaim: assumed at the next start in the same boot."""


Gone = ForgottenTombstone | SharedDeviceGone | WarmGone
"""They end what the journal knows of something."""
Record = SliceRecord | Tombstone | NodeRecord | SharedDeviceRecord | WarmRecord | Gone


def must_outlive_boot(record: Record) -> bool:
    """Whether others act on a record, so that it must be synced before anything follows from it: a slice is ready,
    failed, degraded or gone, or generations were published. The progress of devices concerns this boot alone."""
    match record:
        case SliceRecord(phase=phase):
            return phase in {"ready", "failed", "degraded"}
        case Tombstone() | NodeRecord():
            return True
        case _:
            return False
