"""The ledger of this node, and what its orders change: each is compared with its slice's record. An order counts as
absent only after a complete reading, and absence is never an order."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from sluice.contracts.bus.events import BusEvent, Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.bus.subjects import parse
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RunId
from sluice.contracts.messages import AnyMessage, Booking, Closed, DeviceGrant, Grant, LedgerEntry, NodeOpened, Revoke
from sluice.contracts.reasons import shorten
from sluice.contracts.resize import same_places
from sluice.contracts.ticket_paths import is_ticket_of
from sluice_node_agent.core.events import FoundTicket
from sluice_node_agent.core.hand_over.controller import with_found_claims
from sluice_node_agent.core.instructions import RemoveCdi, RemoveTicket
from sluice_node_agent.core.journal_records import SliceRecord
from sluice_node_agent.core.publish.publisher import Publisher
from sluice_node_agent.core.publish.slice_status import Tombstones
from sluice_node_agent.core.recovery import resume
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.recovery.orphaned_instances import GarbageCollector
from sluice_node_agent.core.recovery.ticket_proofs import TicketRejected, newest_first, verify_ticket
from sluice_node_agent.core.shared.controller import SharedDeviceController
from sluice_node_agent.core.slices import create
from sluice_node_agent.core.slices.controller import SliceController
from sluice_node_agent.core.slices.resize import begin
from sluice_node_agent.core.state.tasks import OldSizeUse, SharedDeviceKey, SliceTask, shared_device_key


class LedgerView:
    """The ledger of one node."""

    def __init__(self, node: NodeName) -> None:
        self._node = node
        self._head: NodeOpened | None = None
        self._incarnation = Incarnation("")
        self._complete = False
        self._seen: dict[AllocationId, None] = {}
        self._sequences: dict[str, int] = {}
        """The newest sequence of each subject in this reading: a durable may redeliver an older one."""
        self.entries: dict[AllocationId, LedgerEntry] = {}

    def is_open_for(self, run: RunId) -> bool:
        """Whether this run may act: the head names it in this life of the broker, and the ledger was read whole."""
        head = self._head
        named = head is not None and (head.incarnation, head.agent_run) == (self._incarnation, run)
        return named and self._complete

    def order(self, allocation: AllocationId) -> Grant | Revoke | None:
        entry = self.entries.get(allocation)
        if isinstance(entry, (Grant, Revoke)) and entry.incarnation == self._incarnation:
            return entry
        return None

    def order_to_end(self, booking: Booking) -> Revoke | None:
        """The Revoke that a Closed replaced, maybe unread; None where a slice went with its node."""
        entry = self.entries.get(booking.allocation)
        if not isinstance(entry, Closed) or entry.removed:
            return None
        return Revoke(revision=entry.revision, incarnation=self._incarnation, booking=booking, cause=entry.cause)

    def bookings(self) -> Iterator[Booking]:
        for entry in self.entries.values():
            if isinstance(entry, (Grant, Revoke)):
                yield entry.booking

    def has_lived(self, allocation: AllocationId) -> bool:
        """Whether the ordered slice was ready before this agent knew of it."""
        return self._head is not None and allocation in self._head.lived

    def is_closed(self, allocation: AllocationId) -> bool:
        """Whether no status of an allocation is awaited: it is closed, or not in the ledger."""
        entry = self.entries.get(allocation)
        return entry is None or isinstance(entry, Closed)

    def handle(self, event: BusEvent) -> list[AllocationId]:
        """Apply one event of the ledger's reading. Returns the allocations that changed."""
        match event:
            case ReadingStarted(stream=Stream.BOOK, incarnation=incarnation):
                self._incarnation = incarnation
                self._head = None
                self._complete = False
                self._seen = {}
                self._sequences = {}
            case Observed(stream=Stream.BOOK, entry=entry) if self._advance(entry):
                return self._observe(entry.subject, entry.message)
            case ReadingCaughtUp(stream=Stream.BOOK):
                return self._catch_up()
        return []

    def _advance(self, entry: Entry) -> bool:
        """Note an entry's sequence. Returns whether none later of its subject was read."""
        known = self._sequences.get(entry.subject, 0)
        self._sequences[entry.subject] = max(known, entry.sequence)
        return entry.sequence >= known

    def _observe(self, subject: str, message: AnyMessage | None) -> list[AllocationId]:
        address = parse(subject)
        if address.kind != "ledger" or address.key[0] != self._node:
            return []
        if address.key[1] == "head":
            self._head = message if isinstance(message, NodeOpened) else None
            return []
        allocation = AllocationId(address.key[1])
        self._seen[allocation] = None
        if not isinstance(message, (Grant, Revoke, Closed)):
            return []  # undecodable: the last known value stands
        named = message.allocation if isinstance(message, Closed) else message.booking.allocation
        if named != allocation:
            return []
        self.entries[allocation] = message
        return [allocation]

    def _catch_up(self) -> list[AllocationId]:
        gone = [] if self._complete else [a for a in self.entries if a not in self._seen]
        for allocation in gone:
            del self.entries[allocation]
        self._complete = True
        self._seen = {}
        return gone


_WHY_MAX = 300
"""Longest reason for a rejected ticket, in characters: a ticket's content may be of any length."""


class OrderReconciler:
    """Applies orders to the slices of a node. `found`: what was found at the start without a record."""

    def __init__(
        self,
        orders: LedgerView,
        tombstones: Tombstones,
        slices: SliceController,
        shared_devices: SharedDeviceController,
        publisher: Publisher,
        *,
        garbage: GarbageCollector,
    ) -> None:
        self._ledger = orders
        self._tombstones = tombstones
        self._state = slices.state
        self._slices = slices
        self._shared_devices = shared_devices
        self._publisher = publisher
        self._garbage = garbage
        self.found = Discovered()

    def hear(self, tickets: Iterable[FoundTicket], node: NodeName) -> tuple[str, ...]:
        """After a lost journal, adopt what tickets prove without the ledger; a sentence for each rejected ticket."""
        found = self.found
        unbelieved: dict[str, TicketRejected] = {}
        for ticket in newest_first(each for each in tickets if each.ticket in found.speaking):
            outcome = verify_ticket(ticket, node, self._state, found)
            if isinstance(outcome, TicketRejected):
                unbelieved[ticket.ticket] = outcome
                continue
            for home in outcome.homes:
                found.claim(home)
                self._shared_devices.begin(home)
            self._slices.save(with_found_claims(outcome.slice, found))
            found.forget_tickets((outcome.slice.ticket, *outcome.slice.stale_tickets))
        for key in self._state.claims():
            found.unclaimed.pop(key, None)
        left = {ticket: why for ticket, why in unbelieved.items() if ticket in found.tickets}
        found.doubtful = tuple(ticket for ticket, why in left.items() if not why.over)
        found.over = tuple(ticket for ticket, why in left.items() if why.over)
        return tuple(f"ticket {ticket} is not believed: {shorten(why.why, _WHY_MAX)}" for ticket, why in left.items())

    def awaited(self) -> frozenset[SharedDeviceKey]:
        """Places of orders that wait for a GPU with unknown content: what is there may be theirs."""
        if not self.found.unseen:
            return frozenset()
        slices, tombstones = self._state.slices, self._tombstones
        untaken = (each for each in self._ledger.entries if each not in slices and each not in tombstones)
        orders = (order for each in untaken if (order := self._ledger.order(each)) is not None)
        waiting = (order.booking for order in orders if self.found.hides(order.booking))
        return frozenset(shared_device_key(grant) for booking in waiting for grant in booking.devices)

    def clear_away(self) -> None:
        """All orders were read: remove tickets and CDI files without an order, and tickets of slices that are gone."""
        for ticket in self.found.useless_tickets(self._ledger.entries):
            self._garbage.clear(ticket, RemoveTicket(0, ticket))
        for claim in self.found.useless_cdi(self._ledger.bookings()):
            self._garbage.clear(claim, RemoveCdi(0, claim))

    def take(self, allocation: AllocationId, now: float) -> None:
        order = self._ledger.order(allocation)
        work = self._state.slices.get(allocation)
        if work is not None:
            newest = self._newest(order, work.record)
            if newest is not None and newest.revision > work.record.revision and work.waits_for is None:
                self._take_newer(work, newest)
        elif allocation in self._tombstones:
            stone = self._tombstones[allocation]
            if order is not None and order.revision > stone.revision:
                self._slices.save(replace(stone, revision=order.revision))
            else:
                self._publisher.say_gone(allocation, now, is_closed=self._ledger.is_closed(allocation))
        elif order is not None:
            self._take_first(order)
        elif isinstance(entry := self._ledger.entries.get(allocation), Closed):
            self._publisher.say_closed(entry)
            for ticket in self.found.tickets_of(allocation):
                self._garbage.clear(ticket, RemoveTicket(0, ticket))

    def _take_first(self, order: Grant | Revoke) -> None:
        """Apply an order that is new to the journal, once its GPUs answer: seeing nothing there proves nothing."""
        booking, found = order.booking, self.found
        if found.hides(booking):
            return
        is_next = self._are_gone(order.after) and not (isinstance(order, Grant) and self._serves_a_daemon(booking))
        was_begun = not is_next and self._was_begun(order)
        if not is_next and not was_begun:
            self._slices.save(self._as_it_was(resume.planned_after_others(order)))
            return
        for grant in booking.devices:
            if grant.share is not None and shared_device_key(grant) not in self._state.homes:
                home = resume.adopt_shared_device(
                    booking, grant, self._state, found, name=self._shared_devices.new_name()
                )
                if home is not None:
                    found.claim(home)
                    self._shared_devices.begin(home)
        record = with_found_claims(self._as_it_was(resume.adopt_slice(order, self._state, found)), found)
        if record.phase == "planned" and (is_next or was_begun):
            record = create.begin(record, self._state, self._slices.new_ticket(booking.allocation))
        for key in resume.claims_of([record], [], self._state.devices):
            found.unclaimed.pop(key, None)
        found.forget_tickets(record.stale_tickets if not record.ticket else (record.ticket, *record.stale_tickets))
        self._slices.save(record)

    def _as_it_was(self, record: SliceRecord) -> SliceRecord:
        """A slice that was ready, as the head says, is not one that was never created: its pod keeps its place."""
        return resume.as_lived_in(record) if self._ledger.has_lived(record.booking.allocation) else record

    def _take_newer(self, work: SliceTask, order: Grant | Revoke) -> None:
        """Revoked stays revoked. Places never move: a Grant at another place is ignored. Shares may change size."""
        record = work.record
        if isinstance(order, Revoke) or record.revoked:
            cause = order.cause if isinstance(order, Revoke) else record.cause
            others = record.ignores_holders or _was_never_begun(record)
            record = replace(record, phase="unmaking", revision=order.revision, cause=cause, ignores_holders=others)
        elif same_places(order.booking.devices, record.booking.devices):
            phase = "planned" if record.phase == "failed" else record.phase
            devices = order.booking.devices
            if devices != record.booking.devices or (record.phase == "ready" and not self._is_served(devices)):
                record = replace(record, adjusting=begin(record, devices, order.counts))
            record = replace(record, phase=phase, revision=order.revision, booking=order.booking)
            record = replace(record, after=order.after, evict=order.evict)
        else:
            return
        work.retry_at = None
        work.old_size = OldSizeUse()
        self._slices.save(record)

    def _is_served(self, devices: tuple[DeviceGrant, ...]) -> bool:
        """Whether servers are known to allow these shares: a ticket found after a lost journal does not prove it."""
        return all(create.is_served(grant, self._state) for grant in devices)

    def _newest(self, order: Grant | Revoke | None, record: SliceRecord) -> Grant | Revoke | None:
        """The order that stands for a slice of the journal; a Closed ends one that is being created, too: an earlier
        run published that it is gone, then the journal was lost, and its Grant was read from a lagging server (ADR
        0051)."""
        if order is not None or record.phase not in {"planned", "making"}:
            return order
        return self._ledger.order_to_end(record.booking)

    def _was_begun(self, order: Grant | Revoke) -> bool:
        """Whether creation began for an order although its predecessors at the place are not known to be gone. Usually
        it did not, and what is there belongs to them. But after a lost journal, an order with a ticket was begun; so
        was one with a device that can only be its own."""
        if any(is_ticket_of(ticket, order.booking.allocation) for ticket in self.found.tickets):
            return True
        entries = [self._ledger.entries.get(other) for other in order.after]
        if not all(isinstance(entry, (Grant, Revoke, Closed)) for entry in entries):
            return False
        mine = order.booking.allocation
        others = [entry for entry in self._ledger.entries.values() if isinstance(entry, (Grant, Revoke))]
        # Those that come after this one have nothing yet.
        older = [each.booking for each in others if each.booking.allocation != mine and mine not in each.after]
        return resume.can_only_belong_to(order.booking, older, self._state, self.found)

    def is_next(self, record: SliceRecord) -> bool:
        """Whether everything that a planned slice comes after is gone, orphaned instances included."""
        return self._are_gone(record.after) and not self._serves_a_daemon(record.booking)

    def _serves_a_daemon(self, booking: Booking) -> bool:
        """Whether a GPU booked whole is not free yet: set to serve a daemon, until its home is gone."""
        whole = [grant.gpu for grant in booking.devices if grant.profile is None and grant.share is None]
        return any(gpu in self.found.aside or any(home[0] == gpu for home in self._state.homes) for gpu in whole)

    def _are_gone(self, others: Iterable[AllocationId]) -> bool:
        return all(
            other not in self._state.slices and (other in self._tombstones or self._ledger.is_closed(other))
            for other in others
        )


def _was_never_begun(record: SliceRecord) -> bool:
    """Whether a slice still waited for others: processes on its devices are theirs. No device need answer for that."""
    return record.phase == "planned" and bool(record.after) and not (record.boot_id or record.ticket)
