"""Guarantees of namespaces while pods are evicted, counted in devices from the ledger; only what could be known."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.judges.books import Books
from simulation.world.host import Host

from sluice.contracts.bus.events import Observed, Write
from sluice.contracts.ids import AllocationId, OperationId, RunId
from sluice.contracts.messages import Booking, Grant, QuotaSet, Revoke
from sluice_allocator.core.allocator import Allocator

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

Standing = dict[AllocationId, Booking]


def guaranteed_by(plan: "Plan") -> dict[str, int]:
    """What namespaces are guaranteed from the beginning; nothing where two decide at once, or a file is read first."""
    if plan.both_active or plan.limits_file or any(fault.kind == "lease" for fault in plan.faults):
        return {}
    return {said.namespace: gpus for said in plan.quotas if (gpus := said.guaranteed[0]) is not None}


class GuaranteeJudge:
    """Observes what lands on the bus, after the judge did, and what allocators want to write."""

    def __init__(self, books: Books, guaranteed: dict[str, int]) -> None:
        """Start without evictions; `guaranteed`: devices by namespace, known to one allocator from the start."""
        self._books = books
        self._guaranteed = guaranteed
        self._revoking: dict[RunId, dict[AllocationId, None]] = {}
        """What each process wanted to revoke: another's messages under way it cannot know."""
        self._evicting: dict[RunId, dict[AllocationId, int]] = {}
        """What each process wants to evict for a grant that has not landed, in the same way; and which of its decisions
        that is: one that waited behind its guard is sent after others that were made later."""
        self._decided: dict[AllocationId, tuple[RunId, int]] = {}
        """The same of each grant that evicts."""
        self._stood: dict[AllocationId, Standing] = {}
        """Per grant that evicts, what stood in the ledger and was to stay when it was decided, ..."""
        self._going: dict[AllocationId, dict[AllocationId, None]] = {}
        """... and which ones were being evicted, for this one or for those that were decided before."""
        self._was_wiped = False
        self._told: dict[RunId, dict[str, frozenset[OperationId]]] = {}
        """
        Once a broker has lost what the operator said, it binds a process only when that has heard it again: the word is
        in BOOK, and no guard of a ledger covers it. What was under way to it from before the wipe is none of that. Nor
        does it bind what was decided before that, and is not settled: these words."""
        self._said: dict[str, OperationId] = {}
        """What the operator published last in this incarnation of the broker."""
        self._unaware_of: dict[AllocationId, tuple[str, ...]] = {}
        """Per grant that evicts, the guarantees that its process had not observed again when it was decided."""

    def instructed(self, host: Host, instruction: object) -> None:
        if not self._guaranteed or not isinstance(instruction, Write):
            return
        message, number = instruction.message, _number_of(instruction.operation)
        if isinstance(message, Revoke):
            self._revoking.setdefault(host.run, {})[message.booking.allocation] = None
        elif isinstance(message, Grant) and message.evict and message.booking.allocation not in self._stood:
            evicting = self._evicting.setdefault(host.run, {})
            evicting |= dict.fromkeys(message.after, number)
            self._decided[message.booking.allocation] = host.run, number
            before = dict.fromkeys(each for each, decided in evicting.items() if decided <= number)
            evicted = self._evicted(host.run, number)
            self._going[message.booking.allocation] = {**before, **evicted}
            leaving = {**self._revoking.get(host.run, {}), **evicted}
            stood = {each: booking for each, booking in self._standing().items() if each not in leaving}
            self._stood[message.booking.allocation] = stood
            unaware = (each for each in self._guaranteed if self._is_unaware(host.run, each, instruction.operation))
            self._unaware_of[message.booking.allocation] = tuple(unaware)

    def listener(self, allocator: Host) -> Callable[[object], None]:
        def hear(event: object) -> None:
            if not isinstance(event, Observed) or not isinstance(event.entry.message, QuotaSet):
                return
            namespace = event.entry.message.namespace
            if self._said.get(namespace) == event.entry.operation:
                told = self._told.setdefault(allocator.run, {})
                assert isinstance(allocator.core, Allocator)
                told.setdefault(namespace, frozenset(allocator.core.ctx.undecided))

        return hear

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        if isinstance(write.message, QuotaSet):
            self._said[write.message.namespace] = write.operation
        if isinstance(write.message, Grant) and write.message.evict and not write.message.adopted:
            self._granted(write.message)
            for evicting in self._evicting.values():  # from here on the ledger shows whether it stands
                for each in write.message.after:
                    evicting.pop(each, None)

    def wiped(self) -> None:
        """The broker forgot its ledger: nothing that was decided on it can land any more."""
        self._revoking.clear()
        self._evicting.clear()
        self._stood.clear()
        self._going.clear()
        self._decided.clear()
        self._unaware_of.clear()
        self._told.clear()
        self._said.clear()
        self._was_wiped = True

    def _is_unaware(self, run: RunId, namespace: str, operation: OperationId) -> bool:
        """Whether a process had not observed a guarantee again when it decided something."""
        unsettled = self._told.get(run, {}).get(namespace)
        return self._was_wiped and (unsettled is None or operation in unsettled)

    def _granted(self, grant: Grant) -> None:
        """Other namespaces keep their guarantee after all known evictions.

        A pod that ended after the decision counts as if it stayed, and so does one that its own namespace gives up
        later. An unanswered write has to be sent again as it is (PROTOCOL §2, W3), and may have landed before; the
        guard does not cover ends on other nodes.
        """
        bookings = self._books.bookings
        going = self._going.get(grant.booking.allocation)
        evicted = {each: None for each in self._evicted() if going is None or each in going}
        evicted |= dict.fromkeys(grant.after)
        stay = {**self._stood.get(grant.booking.allocation, {}), **self._standing()}
        for namespace in {bookings[each].namespace for each in grant.after if each in bookings}:
            least = self._guaranteed.get(namespace)
            if least is None or namespace == grant.booking.namespace:
                continue
            if namespace in self._unaware_of.get(grant.booking.allocation, ()):
                continue
            left = sum(
                len(booking.devices)
                for each, booking in stay.items()
                if booking.namespace == namespace and each not in evicted
            )
            if left < least:
                text = f"{namespace} has {left} devices left of {least}: {grant.booking.request}"
                self._books.fail("guaranteed", text)

    def _standing(self) -> Standing:
        """What the ledger grants, and no agent has said to be gone; a place that others have yet is not had."""
        return {
            entry.booking.allocation: entry.booking
            for node, book in self._books.ledger.items()
            for entry in book.values()
            if isinstance(entry, Grant) and entry.booking.allocation not in self._books.gone
            if not self._books.waits(node, entry.booking.allocation)
        }

    def _evicted(self, run: RunId | None = None, number: int = 0) -> dict[AllocationId, None]:
        """Those for whose places others stand in the ledger; as a process knew it when it decided to evict them."""
        books = self._books.ledger.values()
        promises = [entry for book in books for entry in book.values() if isinstance(entry, Grant) and entry.evict]
        return {
            each: None
            for promise in promises
            if not _is_later(self._decided.get(promise.booking.allocation), run, number)
            for each in promise.after
        }


def _number_of(operation: OperationId) -> int:
    """Which of its process's wishes a write is: they are numbered as they are decided."""
    return int(operation.rpartition("-")[2])


def _is_later(decided: tuple[RunId, int] | None, run: RunId | None, number: int) -> bool:
    return decided is not None and decided[0] == run and decided[1] > number
