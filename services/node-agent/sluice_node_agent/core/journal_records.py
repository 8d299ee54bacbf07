"""
What a node agent writes in its journal, and what it must find there again after a crash.

A record is saved before the device step that it announces and again with that step's result. It must say enough to go
on with the devices at hand, and nothing that a reading of the devices or of the ledger would say better.

Saved is in the file, where the death of the agent cannot touch it. What must outlive the node's own crash is on disk as
well before anything follows from it (`must_outlive_boot`, ADR 0042).
"""

from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, HomeId, NodeName, RequestId
from sluice.contracts.messages import Booking, DeviceGrant

DeviceStep = Literal["planned", "intended", "made"]
"""`intended`: an instance may be on the GPU from now on. `made`: it was read back as ordered."""

Phase = Literal["planned", "making", "ready", "undoing", "failed", "degraded", "unmaking"]
"""
planned -> making -> ready; making -> undoing -> failed, or degraded when it had been ready before; a Revoke leads from
everywhere to unmaking, and from there only a tombstone follows.
"""


SharedDevicePhase = Literal["making", "ready", "undoing", "failed", "unmaking"]
"""
making -> ready, and back when its daemon died; making -> undoing -> failed when it could not be made. Unmaking ends in
SharedDeviceGone.
"""


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far one device of a booking is. A GPU granted whole has no `gi_id`, and its own UUID."""

    step: DeviceStep = "planned"
    gi_id: int | None = None
    uuid: str = ""
    """The MIG device's, as soon as its compute instance exists."""
    daemon_restarts: int = 0
    """Of a share: how often its home's MPS daemon had been started again when it joined."""
    found: bool = False
    """The instance was there before its tenant: an administrator's, which is never destroyed."""


class ResizeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far a change of a ready slice's shares is. Its booking says the new ones."""

    counts: tuple[DeviceGrant, ...] = ()
    """What it counts until nothing larger is used; empty when its shares only grow."""
    renewed: bool = False
    """It was made smaller, and has another ticket; the old one is stale."""
    told: bool = False
    """The homes' limits are as needed, and its ticket and its words say the new sizes."""
    clients: tuple[int, ...] | None = None
    """Processes that may use what it had; None before its homes were looked at once more."""


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True, tag="slice"):
    """One slice that is not gone: what was ordered, and how far it is."""

    booking: Booking
    revision: int
    phase: Phase
    devices: tuple[DeviceRecord, ...]
    """In the order of `booking.devices`."""
    after: tuple[AllocationId, ...] = ()
    evict: bool = False
    """Whether the pods of those are evicted. Kept for whoever has to write the ledger anew, and for nothing else."""
    adjusting: ResizeRecord | None = None
    """Its shares were changed, and that is not done yet."""
    boot_id: str = ""
    """The boot in which its instances were made: they do not survive it."""
    ticket: str = ""
    stale_tickets: tuple[str, ...] = ()
    """Tickets of devices that are not there any more: removed before anything is made again."""
    ignores_holders: bool = False
    """An operator vouched that processes found on its devices are none of its tenant's."""
    lost: bool = False
    """It had been ready, and its devices vanished (reboot, reset)."""
    cause: str = ""
    """Why it is unmade."""
    error: str = ""
    message: str = ""

    @property
    def revoked(self) -> bool:
        """Whether it is being unmade by order."""
        return self.phase == "unmaking"


class TicketRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    The second copy of a ready slice's record, in its ticket: what is left to go by where journal and ledger are lost.

    It says nothing that does not hold for as long as the ticket is there, and nothing of another boot.
    """

    booking: Booking
    revision: int
    boot_id: str
    devices: tuple[DeviceRecord, ...]
    """In the order of `booking.devices`. Of a share, `gi_id`, `uuid` and `found` are its home's."""
    counts: tuple[DeviceGrant, ...] = ()
    """As in `ResizeRecord`."""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, tag="tombstone"):
    """A slice that is gone. Remembered so that a late order can never bring it back."""

    allocation: AllocationId
    request: RequestId
    revision: int
    cause: str


class ForgottenTombstone(msgspec.Struct, frozen=True, kw_only=True, tag="forgotten"):
    """A tombstone that nobody can ask about any more."""

    allocation: AllocationId


class MpsLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an MPS server lets each client have at most: percent of the device's SMs, and its memory in MiB."""

    active_thread_percentage: int
    memory_mib: int


class SharedDeviceRecord(msgspec.Struct, frozen=True, kw_only=True, tag="home"):
    """
    A home of shares: the device that several tenants of one trust domain live on, and its MPS daemon.

    `profile` is None for a whole GPU. It is made with its first share and unmade with its last.
    """

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
    """Of the daemon's process, once it was seen to answer."""
    started_at: int = 0
    """When that process began, in clock ticks since boot (/proc/<pid>/stat field 22): tells it from a later one."""
    limits: MpsLimits | None = None
    """What was last set and read back; None while it is being changed."""
    restarts: int = 0
    """How often its daemon died and was started again."""
    inherited: bool = False
    """
    Its daemon was taken over without a journal. Somebody who was being taken back then has no ticket, so the ledger
    alone can name him: until a look finds clients of tenants only, nobody is put into it and it is not stopped.
    """
    error: str = ""
    message: str = ""


class SharedDeviceGone(msgspec.Struct, frozen=True, kw_only=True, tag="home-gone"):
    """A home that is not there any more."""

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
    """It was taken by a slice, or destroyed."""

    gpu: GpuUuid
    gi_id: int


class UnclaimedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that was on a GPU when the journal was found lost: perhaps ours, if the ledger says so."""

    gpu: GpuUuid
    gi_id: int
    uuid: str = ""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="node"):
    """Whose journal this is, and what must not go back."""

    node: NodeName
    boot_id: str
    generation_upto: int
    """No generation above this was ever told."""
    unclaimed: tuple[UnclaimedInstance, ...] = ()
    unseen: tuple[GpuUuid, ...] = ()
    """GPUs that did not answer when the journal was found lost: what is there on them is not known yet."""
    seen: tuple[GpuUuid, ...] | None = None
    """
    Those of which it is known, where there were also GPUs then that could not tell their UUID: all others are unseen.
    None where all told it.
    """
    tickets: tuple[str, ...] = ()
    """Tickets that were there then and that no record names: the next life, too, goes by what they say."""


Record = (
    SliceRecord
    | Tombstone
    | ForgottenTombstone
    | NodeRecord
    | SharedDeviceRecord
    | SharedDeviceGone
    | WarmRecord
    | WarmGone
)


def must_outlive_boot(record: Record) -> bool:
    """
    Whether a record has to be on disk before anything follows from it.

    So is what others are told by it: that a slice is ready, failed, degraded or gone, and which generations were told.
    How far devices and daemons are is about this boot alone: they do not survive it, and the order that they follow
    from is read again.
    """
    match record:
        case SliceRecord(phase=phase):
            return phase in {"ready", "failed", "degraded"}
        case Tombstone() | NodeRecord():
            return True
        case _:
            return False
