"""Instances, tickets and homes found at the start without a record: ours perhaps, if the journal was lost. An instance
belongs to a slice only if the ledger or a ticket names its exact place and, where marks are complete, a mark shows that
we created it. An unassigned one with a mark is ours still (`orphaned_instances`); one without is foreign and never
touched. A home's directory and daemon are ours. A GPU that did not answer is unknown: seeing nothing there proves
nothing."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId, GpuUuid, HomeId
from sluice.contracts.messages import Booking, DeviceGrant, GpuReport
from sluice.contracts.ticket_paths import is_ticket_of
from sluice_node_agent.core.events import AgentStarted, FoundMpsHome
from sluice_node_agent.core.journal_records import (
    DeviceRecord,
    NodeRecord,
    SharedDeviceRecord,
    SliceRecord,
    UnclaimedInstance,
    WarmRecord,
)
from sluice_node_agent.core.state.devices import Devices, InstanceKey
from sluice_node_agent.core.state.tasks import SharedDeviceKey


@dataclass(slots=True)
class Discovered:
    """Found instances with their MIG UUIDs, found tickets and found homes."""

    unclaimed: dict[InstanceKey, str] = field(default_factory=dict)
    tickets: tuple[str, ...] = ()
    homes: dict[HomeId, FoundMpsHome] = field(default_factory=dict)
    unseen: dict[GpuUuid, None] = field(default_factory=dict)
    nameless: bool = False
    """Some GPUs could not read their UUID when the journal was lost: a GPU first named now is one of the unseen."""
    speaking: tuple[str, ...] = ()
    """Tickets that existed when the journal was lost: their content counts."""
    doubtful: tuple[str, ...] = ()
    """Rejected tickets whose slice may still be in use."""
    over: tuple[str, ...] = ()
    """Tickets whose slice is certainly not in use any more."""
    aside: dict[GpuUuid, None] = field(default_factory=dict)
    """Whole GPUs that were set to serve a daemon, without a record of its trust domain."""
    cdi: dict[str, None] = field(default_factory=dict)
    """UIDs of ResourceClaims with a CDI file, of no recorded slice."""

    def hides(self, booking: Booking) -> bool:
        """Whether an instance of these devices may exist unseen. A whole GPU needs none."""
        return any(grant.gpu in self.unseen for grant in booking.devices if grant.profile is not None)

    def instance_at(self, grant: DeviceGrant, devices: Devices) -> DeviceRecord:
        """The unrecorded instance at exactly a granted place, if it may be ours: a foreign one has no mark."""
        there = devices.instance_at(grant) if grant.profile is not None else None
        if there is None or self.unclaimed.get((grant.gpu, there.gi_id)) != there.uuid:
            return DeviceRecord()
        if not devices.may_be_ours(grant):
            return DeviceRecord()
        return DeviceRecord(step="intended", gi_id=there.gi_id, uuid=there.uuid)

    def expect(self, gpu: GpuUuid) -> None:
        """A GPU is named that could not read its UUID at the start."""
        if self.nameless:
            self.unseen[gpu] = None

    def seen(self, devices: Devices) -> tuple[GpuUuid, ...] | None:
        """The GPUs with known content, for the journal, if others cannot be named (`NodeRecord`)."""
        return tuple(gpu for gpu in devices.reports if gpu not in self.unseen) if self.nameless else None

    def see(self, report: GpuReport, claimed: Collection[InstanceKey]) -> bool:
        """A GPU was read: discover what records (`claimed`) do not name there. Returns whether it had been unseen."""
        if report.lost or report.uuid not in self.unseen:
            return False
        del self.unseen[report.uuid]
        there = () if report.fixed_layout else report.instances
        found = {(report.uuid, instance.gi_id): instance.uuid for instance in there}
        self.unclaimed |= {key: uuid for key, uuid in found.items() if key not in claimed}
        return True

    def made(self, key: InstanceKey) -> None:
        """An instance was created: a discovered one with the same id is gone."""
        self.unclaimed.pop(key, None)

    def gpu_read(self, report: GpuReport) -> None:
        """Drop what was discovered on a GPU and is gone: the next instance may get its id."""
        if report.lost:
            return
        there = {(report.uuid, instance.gi_id) for instance in report.instances}
        for key in [key for key in self.unclaimed if key[0] == report.uuid and key not in there]:
            del self.unclaimed[key]

    def served_gpus(self) -> tuple[GpuUuid, ...]:
        """Whole GPUs that serve a daemon, or were set to, without a record: they are not free."""
        served = (home.gpu for home in self.homes.values() if home.pid and home.device == home.gpu)
        return tuple(dict.fromkeys((*self.aside, *served)))

    def claim(self, home: SharedDeviceRecord) -> None:
        self.homes.pop(home.home, None)
        if home.profile is None:
            self.aside.pop(home.gpu, None)
        if home.device.gi_id is not None:
            self.unclaimed.pop((home.gpu, home.device.gi_id), None)

    def tickets_of(self, allocation: AllocationId) -> tuple[str, ...]:
        """The tickets of a slice that is gone. They are dropped here."""
        theirs = tuple(ticket for ticket in self.tickets if is_ticket_of(ticket, allocation))
        self.forget_tickets(theirs)
        return theirs

    def forget_tickets(self, named: Collection[str]) -> None:
        self.tickets, self.speaking, self.doubtful, self.over = (
            tuple(ticket for ticket in tickets if ticket not in named)
            for tickets in (self.tickets, self.speaking, self.doubtful, self.over)
        )

    def useless_tickets(self, ordered: Iterable[AllocationId]) -> tuple[str, ...]:
        """Tickets of gone slices without an order, once all orders were read. Dropped here."""
        if not self.over:
            return ()
        useless = tuple(each for each in self.over if not any(is_ticket_of(each, other) for other in ordered))
        self.forget_tickets(useless)
        return useless

    def useless(self, devices: Devices) -> list[FoundMpsHome]:
        """Homes whose device does not exist, so that no tenant can use them. They are dropped here."""
        return self._forget([home for home in self.homes.values() if _is_gone(home.gpu, home.device, devices)])

    def deserted(self, awaited: Collection[SharedDeviceKey]) -> list[FoundMpsHome]:
        """Homes without a daemon that no order has claimed, once all orders were read. They are dropped here. Before
        that a container may have to find the directory. One on an unseen GPU, or at the place of a waiting order
        (`awaited`), may still be claimed."""
        kept = {*self.unseen, *(gpu for gpu, _, _ in awaited)}
        return self._forget([home for home in self.homes.values() if not home.pid and home.gpu not in kept])

    def _forget(self, homes: list[FoundMpsHome]) -> list[FoundMpsHome]:
        for home in homes:
            del self.homes[home.home]
        return homes

    def useless_cdi(self, bookings: Iterable[Booking]) -> tuple[str, ...]:
        """Claims whose CDI file no order names, once. All orders were read."""
        if not self.cdi:
            return ()
        named = {claim.uid for booking in bookings for claim in booking.resource_claims}
        useless = tuple(claim for claim in self.cdi if claim not in named)
        for claim in useless:
            del self.cdi[claim]
        return useless

    def unclaimed_records(self) -> tuple[UnclaimedInstance, ...]:
        """The instances, for the journal: the next run must know them too."""
        return tuple(UnclaimedInstance(gpu=key[0], gi_id=key[1], uuid=uuid) for key, uuid in self.unclaimed.items())


def named_gpus(event: AgentStarted) -> Iterator[GpuUuid]:
    """All GPUs that the journal, tickets, marks and homes' directories name: they are, or were, on this node."""
    for record in event.records:
        match record:
            case SliceRecord(booking=booking):
                yield from (grant.gpu for grant in booking.devices)
            case SharedDeviceRecord(gpu=gpu) | WarmRecord(gpu=gpu):
                yield gpu
            case NodeRecord(unclaimed=unclaimed, unseen=unseen):
                yield from (*(each.gpu for each in unclaimed), *unseen)
    for ticket in event.found_tickets:
        yield from (grant.gpu for grant in ticket.record.booking.devices) if ticket.record is not None else ()
    yield from (mark.gpu for mark in event.marks)
    yield from (home.gpu for home in event.homes)


def discover(
    event: AgentStarted, slices: list[SliceRecord], homes: list[SharedDeviceRecord], claimed: Collection[InstanceKey]
) -> Discovered:
    """What no record names. Instances only when the journal was lost, now or in an earlier run of the same boot."""
    hidden: dict[GpuUuid, None] = {}
    nameless = False
    speaking: tuple[str, ...] = ()
    before = next((record for record in event.records if isinstance(record, NodeRecord)), None)
    there: list[tuple[InstanceKey, str]] = []
    if event.journal_problem:
        hidden = {gpu.uuid: None for gpu in event.gpus}
        nameless = bool(event.nameless)
        speaking = event.tickets
    elif before is not None and before.boot_id == event.boot_id:
        there = [((instance.gpu, instance.gi_id), instance.uuid) for instance in before.unclaimed]
        silent = {gpu.uuid for gpu in event.gpus if gpu.lost}  # what was found there cannot be seen now
        hidden = dict.fromkeys((*before.unseen, *(gpu for (gpu, _), _ in there if gpu in silent)))
        if before.seen is not None:
            hidden |= {gpu.uuid: None for gpu in event.gpus if gpu.uuid not in before.seen}
            nameless = bool(event.nameless)
        speaking = before.tickets
    tickets = {ticket for record in slices for ticket in (record.ticket, *record.stale_tickets)}
    names = {record.home for record in homes}
    claims = {claim.uid for record in slices for claim in record.booking.resource_claims}
    found = Discovered(
        unclaimed={key: uuid for key, uuid in there if key not in claimed},
        tickets=tuple(ticket for ticket in event.tickets if ticket not in tickets),
        homes={home.home: home for home in event.homes if home.home not in names},
        unseen={gpu.uuid: None for gpu in event.gpus if gpu.uuid in hidden},
        nameless=nameless,
        speaking=tuple(ticket for ticket in event.tickets if ticket in speaking and ticket not in tickets),
        cdi=dict.fromkeys(claim for claim in event.cdi_claims if claim not in claims),
        aside={mark.gpu: None for mark in event.marks if not mark.size and mark.gpu not in {h.gpu for h in homes}},
    )
    for gpu in event.gpus:
        found.see(gpu, claimed)
    return found


def _is_gone(gpu: GpuUuid, device: str, devices: Devices) -> bool:
    report = devices.reports.get(gpu)
    if report is None:
        return True
    return not report.lost and device != gpu and all(instance.uuid != device for instance in report.instances)
