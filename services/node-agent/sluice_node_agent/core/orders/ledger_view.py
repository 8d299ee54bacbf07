"""
The ledger of this node: its head, and the last order of every allocation. It decides nothing. An order counts as absent
only after a complete reading, and absence is never an order.
"""

from collections.abc import Iterator

from sluice.contracts.bus.events import BusEvent, Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.bus.subjects import parse
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RunId
from sluice.contracts.messages import AnyMessage, Booking, Closed, Grant, LedgerEntry, NodeOpened, Revoke


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
        """The order that stands for an allocation, if it was given in this life of the broker."""
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
        """Those of all orders."""
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
            case Observed(stream=Stream.BOOK, entry=entry) if not self._is_outdated(entry):
                return self._observe(entry.subject, entry.message)
            case ReadingCaughtUp(stream=Stream.BOOK):
                return self._catch_up()
            case _:
                pass
        return []

    def _is_outdated(self, entry: Entry) -> bool:
        known = self._sequences.get(entry.subject, 0)
        self._sequences[entry.subject] = max(known, entry.sequence)
        return entry.sequence < known

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
