"""
What is under way: a slice or a home of shares, what it waits for, and how often taking it down has failed.

Also the few changes to a slice's record that making and unmaking share. No decisions here.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, GpuUuid
from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core.events import MpsSeen, QuarantineReleased, QuotaTenant
from sluice_node_agent.core.instructions import OwnInstruction
from sluice_node_agent.core.journal_records import (
    DeviceRecord,
    SharedDeviceGone,
    SharedDeviceRecord,
    SliceRecord,
    Tombstone,
)
from sluice_node_agent.core.slices.mig_instance import NO_DEVICE
from sluice_node_agent.core.state.devices import DevicePlacement

NextStep = SliceRecord | Tombstone | OwnInstruction | None
"""What one slice needs next: a record to be saved first, an instruction, or nothing."""
NextSharedDeviceStep = SharedDeviceRecord | SharedDeviceGone | OwnInstruction | None
SharedDeviceKey = tuple[GpuUuid, int, int]
"""Where a home is: its GPU, start and size. At most one is there at a time."""


@dataclass(slots=True, kw_only=True)
class Task:
    """Something that takes steps, one at a time."""

    waits_for: int | None = None
    """The token of the one instruction that is out for it."""
    saving: bool = False
    """That instruction is a save: what the record says is not on disk yet, so it is not told to anybody."""
    failures: int = 0
    """Failed attempts, in a row."""
    waiting_since: float | None = None
    """Since when it has waited for what ends by itself, and is looked at more often than it counts as failed."""
    retry_at: float | None = None
    trouble: str = ""
    holders: tuple[str, ...] = ()
    released: dict[QuarantineReleased, None] = field(default_factory=dict)
    """What operators said during an attempt: it counts when that has failed."""

    @property
    def idle(self) -> bool:
        """Whether it may take its next step now."""
        return self.waits_for is None and self.retry_at is None

    def recovered(self) -> None:
        """The last attempt got further: what went wrong before does not count any more."""
        self.failures = 0
        self.waiting_since = None
        self.retry_at = None
        self.trouble = ""
        self.holders = ()


@dataclass(slots=True)
class SliceTask(Task):
    """One slice that is not gone."""

    record: SliceRecord
    deserted: bool = False
    """No process of its pod was found in this attempt to unmake."""
    free_of_holders: tuple[int, ...] = ()
    """Devices on which no process of the tenant was found in this attempt to unmake."""
    ticket_is_wrong: bool = False
    """The last look at tickets has not found its own, or not as it should be."""
    to_terminate: tuple[int, ...] = ()
    """Processes of the tenant that the MPS server of a shared device must let go of."""
    looks: dict[SharedDeviceKey, int] = field(default_factory=dict)
    """Its shares were made smaller: more looks at a home than so many tell who may still use what they had."""
    clients: dict[SharedDeviceKey, tuple[int, ...]] = field(default_factory=dict)
    """Who that is, of each home that was looked at since."""
    homes: tuple[SharedDeviceKey, ...] = field(init=False)
    """The homes of its shares: a place never moves."""

    def __post_init__(self) -> None:
        """Look where its shares live, once."""
        self.homes = tuple(shared_devices_of(self.record))

    @property
    def allocation(self) -> AllocationId:
        """Whose slice it is."""
        return self.record.booking.allocation


@dataclass(slots=True)
class SharedDeviceTask(Task):
    """One home of shares that is not gone."""

    record: SharedDeviceRecord
    mode_set: bool = False
    """A whole GPU: this process put it in the compute mode that the next step needs."""
    stopped: bool = False
    """The daemon is known to be gone."""
    watch: bool = True
    """The daemon shall be looked at."""
    unanswered: int = 0
    """How often in a row it did not answer."""
    seen: MpsSeen | None = None
    """What the last look found."""
    looks: int = 0
    """How many looks of this process have found something."""
    strangers: tuple[int, ...] = ()
    """Of one that is inherited: clients that the last look found, of no tenant that is known."""
    quotas: tuple[QuotaTenant, ...] = ()
    """The tenants that its token scheduler has, as this process told it."""
    silent: frozenset[int] = frozenset()
    """Clients that the last look found without a hello to the token scheduler."""
    unheld: frozenset[int] = frozenset()
    """Those that the look before it had found so, too: their time is not held to anything."""

    @property
    def key(self) -> SharedDeviceKey:
        """Where it is."""
        return shared_device_key(self.record)


def shared_device_key(place: DevicePlacement) -> SharedDeviceKey:
    """Where a home is, or the one that a shared device is in."""
    return place.gpu, place.start, place.size


def numbered_devices(record: SliceRecord) -> list[tuple[int, DeviceGrant, DeviceRecord]]:
    """Each device with its number and how far it is."""
    return [(n, grant, record.devices[n]) for n, grant in enumerate(record.booking.devices)]


def shared_devices_of(record: SliceRecord) -> list[SharedDeviceKey]:
    """The homes of its shares."""
    return [shared_device_key(grant) for grant in record.booking.devices if grant.share is not None]


def with_device(record: SliceRecord, number: int, device: DeviceRecord) -> SliceRecord:
    """The record with one device changed."""
    devices = list(record.devices)
    devices[number] = device
    return replace(record, devices=tuple(devices))


def without_device(record: SliceRecord, number: int) -> SliceRecord:
    """The record with one device that is not there (any more), or that it has left."""
    return with_device(record, number, NO_DEVICE)


def undoing(record: SliceRecord, error: str, message: str) -> SliceRecord:
    """Making it did not work: undo what there is."""
    return replace(record, phase="undoing", error=error, message=message)
