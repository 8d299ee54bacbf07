"""
Grants and answers that nobody asks for (PROTOCOL §6): ended when their source has told all it has, and some time after.

Agents report before sources have listed; without this rule a wiped broker would end living training. And STATE is read
whole once more before anything is ended: what was asked may be on its way here, behind what its source said last.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId, SourceName
from sluice.contracts.messages import Booking, Bound, Closed, Grant, Held, Released, RequestWithdrawn
from sluice_allocator.core.binding import answer_without_slice, may_come_yet, release
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.entries import revoke
from sluice_allocator.core.held import waits_for_node
from sluice_allocator.core.standing import is_rejected

_K = TypeVar("_K")


@dataclass(slots=True)
class _Orphan:
    source: SourceName
    """Who would ask for it."""
    syncs_seen: int
    """How often its source had synced when it was found."""
    synced_at: float | None = None
    """When its source synced after that."""
    reading: int | None = None
    """Which reading of STATE was the latest when its time had passed: another one has to show that nobody asks."""


@dataclass(slots=True)
class Orphans:
    """Which grants and answers have no request, and since when that is sure."""

    syncs: dict[SourceName, int] = field(default_factory=dict)
    """How often each source was heard to be complete, by this process, outside snapshots."""
    found: OrderedDict[AllocationId, _Orphan] = field(default_factory=OrderedDict)
    """Grants; those that were looked at longest ago first."""
    answers: OrderedDict[RequestId, _Orphan] = field(default_factory=OrderedDict)
    """Answers, in the same order. A request may be withdrawn while STATE forgets it, and the withdrawal never lands."""
    _readings: int = 0
    """How often STATE began to be read."""
    _wanted: bool = False
    """Whether one of them waits for another reading."""

    def reading_started(self) -> None:
        """STATE is read whole once more."""
        self._readings += 1

    def must_read_again(self) -> bool:
        """Whether STATE has to be read anew to know whether nobody asks for one of them."""
        wanted, self._wanted = self._wanted, False
        return wanted

    def heard(self, desk: Desk, source: SourceName) -> None:
        """A source was heard: it has told all it has, if as many live requests are known here as it counts."""
        synced = desk.world.sources.get(source)
        if synced is not None and len(desk.world.requested_by.get(source, ())) >= synced.count:
            self.syncs[source] = self.syncs.get(source, 0) + 1

    def asked(self, desk: Desk, request: RequestId) -> None:
        """
        A request was heard, or is not there any more: what it has was found without it before, or is from now on.

        Who stands by looks no further; later he would count what its source has told since as told of it.
        """
        for allocation in desk.world.allocations_of.get(request, ()):
            self.look(desk, allocation)
        self.look_at_answer(desk, request)

    def answered(self, desk: Desk, request: RequestId) -> None:
        """There is another answer. Whoever binds a slice has read who asks for it, be it unheard here: found anew."""
        answer = desk.world.bindings.get(request)
        if isinstance(answer, Bound) and self.found.pop(answer.allocation, None) is not None:
            self.look(desk, answer.allocation)

    def look(self, desk: Desk, allocation: AllocationId) -> None:
        """
        Remember a grant that has no request, or a rejected one; forget it when it has one again. One that cannot be
        read is one.
        """
        entry = desk.world.ledger.get(allocation)
        if isinstance(entry, Grant) and _is_asked_by_nobody(desk, entry.booking):
            self._find(self.found, allocation, entry.booking.source)
        elif self.found.pop(allocation, None) is not None and isinstance(entry, Grant):
            address = subjects.ledger(entry.booking.node, allocation)
            if desk.outbox.busy(address):
                desk.take_back(address.guard)  # somebody asks for it: a Revoke that waits for its turn is not sent

    def look_at_answer(self, desk: Desk, request: RequestId) -> None:
        """
        The same of what a request was answered, as long as no slice comes of it: `Bound` ends with its slice.

        And of a `Released` that its source has not heard, or it would have said its last word.
        """
        answer, asked = answer_without_slice(desk, request), desk.world.requests.get(request)
        if answer is not None and not desk.world.speaks_of(request):
            self._find(self.answers, request, answer.source)
        elif isinstance(asked, RequestWithdrawn) and not asked.closing and _is_released(desk, request):
            self._find(self.answers, request, asked.source)
        else:
            self.answers.pop(request, None)

    def tick(self, desk: Desk, now: float) -> None:
        """End what is an orphan for sure, among a bounded number, in turn."""
        for allocation in _in_turn(self.found, desk.rules.orphans_batch):
            self.look(desk, allocation)
            if self._is_sure(desk, self.found.get(allocation), now):
                _revoke(desk, allocation)
        for request in _in_turn(self.answers, desk.rules.orphans_batch):
            self.look_at_answer(desk, request)
            if self._is_sure(desk, self.answers.get(request), now) and _take_back_answer(desk, request):
                self.answers.pop(request)  # who does not hear it is told again when as much time has passed

    def _find(self, found: OrderedDict[_K, _Orphan], key: _K, source: SourceName) -> None:
        """The first time counts."""
        if key not in found:
            found[key] = _Orphan(source, self.syncs.get(source, 0))

    def _is_sure(self, desk: Desk, orphan: _Orphan | None, now: float) -> bool:
        """Whether its source has told all since it was found, its time has passed, and STATE was read whole since."""
        if orphan is None:
            return False
        if orphan.synced_at is None:
            if self.syncs.get(orphan.source, 0) > orphan.syncs_seen:
                orphan.synced_at = now
            return False
        if now - orphan.synced_at < desk.rules.orphan_grace_s:
            return False
        if orphan.reading is None:
            orphan.reading, self._wanted = self._readings, True
        return self._readings > orphan.reading


def _is_asked_by_nobody(desk: Desk, booking: Booking) -> bool:
    """Whether no source has a word about what is booked, or only one that it does not understand what is asked for."""
    request = booking.request
    return not desk.world.speaks_of(request) or is_rejected(desk.world.requests.get(request), booking)


def _in_turn(found: OrderedDict[_K, _Orphan], batch: int) -> Iterator[_K]:
    """Those that were looked at longest ago, at most so many. Whoever looks may take them out."""
    for _ in range(min(batch, len(found))):
        if not found:
            return
        key = next(iter(found))
        found.move_to_end(key)
        yield key


def _revoke(desk: Desk, allocation: AllocationId) -> None:
    entry = desk.world.ledger[allocation]
    assert isinstance(entry, Grant)
    if not desk.outbox.busy(subjects.ledger(entry.booking.node, allocation)):
        revoke(desk, entry, "orphan: its source no longer requests it")


def _is_released(desk: Desk, request: RequestId) -> bool:
    return isinstance(desk.world.bindings.get(request), Released)


def _take_back_answer(desk: Desk, request: RequestId) -> bool:
    """
    Say `Released` (again) where no slice comes of the last word; after what was granted is gone, never before.

    Returns whether it is said.
    """
    if request in desk.committing or desk.outbox.busy(subjects.binding(request)):
        return False
    answer, held, cause = desk.world.bindings.get(request), None, "its request is gone"
    if isinstance(answer, Bound):
        if may_come_yet(desk, answer.allocation):
            return False
        held = Held(node=answer.node, allocation=answer.allocation)
    elif isinstance(answer, Released):
        cause = answer.cause
    entries = (desk.world.ledger[allocation] for allocation in desk.world.allocations_of.get(request, ()))
    if any(not isinstance(entry, Closed) for entry in entries) or waits_for_node(desk, request, held) is not None:
        return False
    release(desk, request, cause)
    return True
