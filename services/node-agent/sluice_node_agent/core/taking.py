"""
Taking orders: the ledger's last word about a slice, held against what the journal knows of it.

It changes what is wanted of a slice, and must not take steps: those follow from the record.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from sluice.contracts.adjusting import same_places
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Closed, Grant, Revoke
from sluice_node_agent.core import making
from sluice_node_agent.core.adjusting import begin
from sluice_node_agent.core.bench import Bench
from sluice_node_agent.core.found import Found
from sluice_node_agent.core.graves import Graves
from sluice_node_agent.core.housing import Housing
from sluice_node_agent.core.orders import Orders
from sluice_node_agent.core.records import SliceRecord
from sluice_node_agent.core.resuming import claims_of, come_later, take_over, take_over_home
from sluice_node_agent.core.telling import Telling
from sluice_node_agent.core.ticket_names import is_ticket_of
from sluice_node_agent.core.work import Work, key_of


class Taking:
    """What orders mean for the slices of a node. `found` is what was there at the start and no record names."""

    def __init__(self, orders: Orders, graves: Graves, bench: Bench, housing: Housing, telling: Telling) -> None:
        """Begin with nothing found."""
        self._orders = orders
        self._graves = graves
        self._floor = bench.floor
        self._bench = bench
        self._housing = housing
        self._telling = telling
        self.found = Found()

    def take(self, allocation: AllocationId, now: float) -> None:
        """Compare the ledger's order with what is known, and take it if it is newer."""
        order = self._orders.order(allocation)
        work = self._floor.works.get(allocation)
        if work is not None:
            if order is not None and order.revision > work.record.revision and work.waits_for is None:
                self._take_newer(work, order)
        elif allocation in self._graves:
            stone = self._graves[allocation]
            if order is not None and order.revision > stone.revision:
                self._bench.save(replace(stone, revision=order.revision))
            else:
                self._telling.say_gone(allocation, now, is_closed=self._orders.is_closed(allocation))
        elif order is not None:
            self._take_first(order)
        elif isinstance(entry := self._orders.entries.get(allocation), Closed):
            self._telling.say_closed(entry)
            for ticket in self.found.tickets_of(allocation):
                self._bench.drop(ticket)

    def _take_first(self, order: Grant | Revoke) -> None:
        """
        An order of which the journal knows nothing.

        It waits for a GPU that has not answered since the journal was lost: that nothing was seen there means nothing.
        """
        booking, found = order.booking, self.found
        if found.hides(booking):
            return
        if self._comes_later(order):
            self._bench.save(come_later(order))
            return
        for grant in booking.devices:
            if grant.share is not None and key_of(grant) not in self._floor.homes:
                home = take_over_home(booking, grant, self._floor, found, name=self._housing.new_name())
                if home is not None:
                    found.claim(home)
                    self._housing.begin(home)
        record = take_over(order, self._floor, found)
        if record.phase == "planned" and self.is_next(record):
            record = making.begin(record, self._floor.boot_id, self._bench.new_ticket(booking.allocation))
        for key in claims_of([record]):
            found.unclaimed.pop(key, None)
        self._bench.save(record)

    def _take_newer(self, work: Work, order: Grant | Revoke) -> None:
        """What is revoked stays revoked. A place never moves: a Grant of another is not taken. A share's size may."""
        record = work.record
        if isinstance(order, Revoke) or record.revoked:
            cause = order.cause if isinstance(order, Revoke) else record.cause
            others = record.ignores_holders or _was_never_begun(record)
            record = replace(record, phase="unmaking", revision=order.revision, cause=cause, ignores_holders=others)
        elif same_places(order.booking.devices, record.booking.devices):
            phase = "planned" if record.phase == "failed" else record.phase
            if order.booking.devices != record.booking.devices:
                record = replace(record, adjusting=begin(record, order.booking.devices, order.counts))
            record = replace(
                record,
                phase=phase,
                revision=order.revision,
                booking=order.booking,
                after=order.after,
                evict=order.evict,
            )
        else:
            return
        work.retry_at = None
        work.looks.clear()
        self._bench.save(record)

    def _comes_later(self, order: Grant | Revoke) -> bool:
        """
        Whether others must be gone first, and so nothing was made for it: what is found at its place is theirs.

        Of a Revoke too: its Grant may have been overwritten before it was read, or the journal that had it was lost.

        One that has a ticket was begun, however little is known of the others since the journal was lost.
        """
        began = any(is_ticket_of(ticket, order.booking.allocation) for ticket in self.found.tickets)
        return not began and not self._are_gone(order.after)

    def is_next(self, record: SliceRecord) -> bool:
        """Whether everything that a planned slice has to come after is gone."""
        return self._are_gone(record.after)

    def _are_gone(self, others: Iterable[AllocationId]) -> bool:
        return all(
            other not in self._floor.works and (other in self._graves or self._orders.is_closed(other))
            for other in others
        )


def _was_never_begun(record: SliceRecord) -> bool:
    """
    Whether a slice still waited for others: whoever is on its devices is one of them, and none of its tenant's.

    The journal knows it, so nobody is asked: not even a GPU that does not answer keeps it.
    """
    return record.phase == "planned" and bool(record.after) and not (record.boot_id or record.ticket)
