"""Work in progress: a slice or a home of shares, what it waits for, how often it failed, and when it is retried.
Retries never end, because only success frees a place."""

from dataclasses import dataclass, field
from math import inf, log2

from msgspec.structs import replace

from sluice.contracts.delayed_queue import backoff_s
from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import Booking, DeviceGrant
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import FoundMpsHome, MpsSeen, QuarantineReleased, QuotaTenant
from sluice_node_agent.core.instructions import CdiDevice, OwnInstruction
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
"""What one slice needs next: a record to save first, an instruction, or nothing."""
NextSharedDeviceStep = SharedDeviceRecord | SharedDeviceGone | OwnInstruction | None
SharedDeviceKey = tuple[GpuUuid, int, int]
"""The place of a home: its GPU, start and size. It holds at most one at a time."""


@dataclass(slots=True, kw_only=True)
class Task:
    """Something that takes steps, one at a time."""

    waits_for: int | None = None
    """The token of its one instruction in flight."""
    saving: bool = False
    """That instruction is a save: the record is not on disk yet, so it is not published."""
    failures: int = 0
    waiting_since: float | None = None
    """Since when it waits for what ends by itself, and is polled more often than it counts as failed."""
    retry_at: float | None = None
    trouble: str = ""
    holders: tuple[str, ...] = ()
    released: dict[QuarantineReleased, None] = field(default_factory=dict)
    """Releases by operators during an attempt: they count once it has failed."""

    @property
    def idle(self) -> bool:
        return self.waits_for is None and self.retry_at is None

    def recovered(self) -> None:
        """The last attempt made progress: earlier failures do not count any more."""
        self.failures = 0
        self.waiting_since = None
        self.retry_at = None
        self.trouble = ""
        self.holders = ()


@dataclass(slots=True)
class OldSizeUse:
    """What this process has seen of the use of a share's old size since the share was made smaller."""

    looks: dict[SharedDeviceKey, int] = field(default_factory=dict)
    """A poll of a home after this number shows which processes still use the old size."""
    clients: dict[SharedDeviceKey, tuple[int, ...]] = field(default_factory=dict)
    """Those processes, per home that was polled since."""
    first_look: float = inf
    """When its containers were looked at first since its ticket is another one."""
    containers: dict[str, bool] = field(default_factory=dict)
    """Those that may have begun with an earlier ticket, and whether they are known not to have."""
    judged: dict[int, bool] = field(default_factory=dict)
    """Processes of containers that name a ticket, by the last look, and whether it is the new one."""
    are_late: bool = False
    """Containers that appear now began later than one could that was created before."""
    looked: int = -1
    """How often its homes had been polled at the last look: with each poll comes another one."""
    restarted: bool = False
    """No container is left, or on its way, that has an earlier ticket."""


@dataclass(slots=True)
class SliceTask(Task):
    """One slice that is not gone."""

    record: SliceRecord
    deserted: bool = False
    """No process of its pod was found in this attempt to destroy."""
    free_of_holders: tuple[int, ...] = ()
    """Devices without processes of the tenant in this attempt to destroy."""
    ticket_is_wrong: bool = False
    cdi: dict[str, tuple[CdiDevice, ...]] = field(default_factory=dict)
    """The CDI files that this process has written, by the claim's UID, and what they hold."""
    to_terminate: tuple[int, ...] = ()
    """Processes of the tenant that the MPS server of a shared device must disconnect."""
    old_size: OldSizeUse = field(default_factory=OldSizeUse)
    homes: tuple[SharedDeviceKey, ...] = field(init=False)
    """The homes of its shares: constant, since places never move."""

    def __post_init__(self) -> None:
        self.homes = tuple(shared_devices_of(self.record))

    @property
    def allocation(self) -> AllocationId:
        return self.record.booking.allocation


@dataclass(slots=True)
class SharedDeviceTask(Task):
    """One home of shares that is not gone."""

    record: SharedDeviceRecord
    mode_set: bool = False
    """A whole GPU: this process put it in the compute mode that the next step needs."""
    stopped: bool = False
    watch: bool = True
    unanswered: int = 0
    seen: MpsSeen | None = None
    looks: int = 0
    strangers: tuple[int, ...] = ()
    """Of an inherited home: clients of no known tenant in the last poll."""
    quotas: tuple[QuotaTenant, ...] = ()
    silent: frozenset[int] = frozenset()
    """Clients without a HELLO to the token scheduler in the last poll."""
    unheld: frozenset[int] = frozenset()
    """Those that were silent in the poll before, too: their time is not enforced."""

    @property
    def key(self) -> SharedDeviceKey:
        return shared_device_key(self.record)


def shared_device_key(place: DevicePlacement) -> SharedDeviceKey:
    """The place of a home, or of the one that a shared device is in."""
    return place.gpu, place.start, place.size


def home_for(grant: DeviceGrant, namespace: str, name: HomeId, boot_id: str) -> SharedDeviceRecord:
    assert grant.share is not None
    return SharedDeviceRecord(
        home=name,
        gpu=grant.gpu,
        profile=grant.profile,
        start=grant.start,
        size=grant.size,
        namespace=namespace,
        uid=grant.share.uid,
        phase="making",
        boot_id=boot_id,
    )


def inherited_home(record: SharedDeviceRecord, device: DeviceRecord, daemon: FoundMpsHome) -> SharedDeviceRecord:
    """The record with the device and the daemon that an earlier run has left; one that died counts as restarted."""
    return replace(
        record,
        home=daemon.home,
        phase="ready" if daemon.pid else "making",
        device=device,
        daemon=True,
        pid=daemon.pid,
        started_at=daemon.started_at,
        restarts=0 if daemon.pid else 1,
        inherited=True,
    )


def numbered_devices(record: SliceRecord) -> list[tuple[int, DeviceGrant, DeviceRecord]]:
    return [(n, grant, record.devices[n]) for n, grant in enumerate(record.booking.devices)]


def shared_devices_of(record: SliceRecord) -> list[SharedDeviceKey]:
    return [shared_device_key(grant) for grant in record.booking.devices if grant.share is not None]


def with_device(record: SliceRecord, number: int, device: DeviceRecord) -> SliceRecord:
    devices = list(record.devices)
    devices[number] = device
    return replace(record, devices=tuple(devices))


def without_device(record: SliceRecord, number: int) -> SliceRecord:
    return with_device(record, number, NO_DEVICE)


def undoing(record: SliceRecord, error: str, message: str) -> SliceRecord:
    return replace(record, phase="undoing", error=error, message=message)


def back_off(job: Task, trouble: str, config: AgentConfig, now: float, holders: tuple[str, ...] = ()) -> None:
    job.failures += 1
    job.trouble, job.holders = trouble, holders
    job.retry_at = now + backoff_s(job.failures, config.back_off_first_s, config.back_off_max_s)


def wait_for_end(job: Task, trouble: str, config: AgentConfig, now: float, holders: tuple[str, ...]) -> None:
    """Something has not ended by itself yet: poll again soon, but count failures and note trouble as with backoff."""
    is_first = job.waiting_since is None
    job.waiting_since = now if job.waiting_since is None else job.waiting_since
    tries = 1 + int(log2(1 + max(0.0, now - job.waiting_since) / config.back_off_first_s))
    if is_first or tries > job.failures:
        job.failures = max(job.failures, tries)
        job.trouble, job.holders = trouble, holders
    job.retry_at = now + config.look_for_tenants_s


def is_stuck(job: Task, config: AgentConfig) -> bool:
    return job.failures >= config.quarantine_after


def is_shared(booking: Booking) -> bool:
    """Whether pods may use it besides its owner, which are unknown here."""
    return bool(shared_claims(booking))


def shared_claims(booking: Booking) -> tuple[str, ...]:
    return tuple(claim.uid for claim in booking.resource_claims if claim.shared)
