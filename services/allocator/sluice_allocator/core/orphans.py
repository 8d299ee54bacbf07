"""
Ends grants and bindings without a request (PROTOCOL §6), once their source has synced and a grace period has passed.

Agents report before sources have listed; without this rule a wiped broker would end running training. STATE is read
once more before anything is ended: a request may still be on its way here, behind its source's last message.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId, SourceName
from sluice.contracts.messages import Booking, Bound, Closed, Grant, Released, RequestWithdrawn
from sluice_allocator.core.binding import answer_without_slice, may_come_yet, release
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.entries import revoke
from sluice_allocator.core.held import waits_for_node
from sluice_allocator.core.standing import is_rejected
from sluice_allocator.core.world import named_by

_K = TypeVar("_K")


@dataclass(slots=True)
class _Orphan:
    source: SourceName
    """The source that would own the request."""
    syncs_seen: int
    """How often its source had synced when it was found."""
    synced_at: float | None = None
    """When its source synced after that."""
    reading: int | None = None
    """The latest reading of STATE when its time had passed: another one has to confirm that no request exists."""


@dataclass(slots=True)
class Orphans:
    """Grants and bindings without a request, and since when that is certain."""

    syncs: dict[SourceName, int] = field(default_factory=dict)
    """How often this process saw each source complete, outside snapshots."""
    found: OrderedDict[AllocationId, _Orphan] = field(default_factory=OrderedDict)
    """Grants; those that were looked at longest ago first."""
    answers: OrderedDict[RequestId, _Orphan] = field(default_factory=OrderedDict)
    """
    Bindings, in the same order. A request may be withdrawn while STATE forgets it, and the withdrawal never lands.
    """
    _readings: int = 0
    """How often STATE began to be read."""
    _wanted: bool = False
    """Whether one of them waits for another reading."""

    def reading_started(self) -> None:
        """A complete reading of STATE begins."""
        self._readings += 1

    def must_read_again(self) -> bool:
        """Whether STATE has to be reread to confirm that one of them has no request."""
        wanted, self._wanted = self._wanted, False
        return wanted

    def heard(self, desk: Desk, source: SourceName) -> None:
        """A source published that it is complete, which holds if as many live requests are known here as it counts."""
        synced = desk.world.sources.get(source)
        if synced is not None and len(desk.world.requested_by.get(source, ())) >= synced.count:
            self.syncs[source] = self.syncs.get(source, 0) + 1

    def asked(self, desk: Desk, request: RequestId) -> None:
        """
        A request appeared or went: its slices are orphans from now on, or were found before.

        A standby looks no further; otherwise it would later count a sync that came before as one that came after.
        """
        for allocation in desk.world.allocations_of.get(request, ()):
            self.look(desk, allocation)
        self.look_at_answer(desk, request)

    def answered(self, desk: Desk, request: RequestId) -> None:
        """The binding changed. An allocator that binds has read the request, even if it is unknown here: start over."""
        answer = desk.world.bindings.get(request)
        if isinstance(answer, Bound) and self.found.pop(answer.allocation, None) is not None:
            self.look(desk, answer.allocation)

    def look(self, desk: Desk, allocation: AllocationId) -> None:
        """
        Remember a grant without a request, or with a rejected one; forget it when it has one. Unreadable counts as
        one.
        """
        entry = desk.world.ledger.get(allocation)
        if isinstance(entry, Grant) and _is_asked_by_nobody(desk, entry.booking):
            self._find(self.found, allocation, entry.booking.source)
        elif self.found.pop(allocation, None) is not None and isinstance(entry, Grant):
            address = subjects.ledger(entry.booking.node, allocation)
            if desk.outbox.busy(address):
                desk.take_back(address.guard)  # it has a request: a Revoke that waits for its turn is not sent

    def look_at_answer(self, desk: Desk, request: RequestId) -> None:
        """
        The same for a binding, as long as no slice comes of it: `Bound` ends with its slice.

        And for a `Released` that its source has not read, or it would have published its end.
        """
        answer, asked = answer_without_slice(desk, request), desk.world.requests.get(request)
        if answer is not None and not desk.world.speaks_of(request):
            self._find(self.answers, request, answer.source)
        elif isinstance(asked, RequestWithdrawn) and not asked.closing and _is_released(desk, request):
            self._find(self.answers, request, asked.source)
        else:
            self.answers.pop(request, None)

    def tick(self, desk: Desk, now: float) -> None:
        """End certain orphans, among a bounded number, in turn."""
        for allocation in _in_turn(self.found, desk.rules.orphans_batch):
            self.look(desk, allocation)
            if self._is_sure(desk, self.found.get(allocation), now):
                _revoke(desk, allocation)
        for request in _in_turn(self.answers, desk.rules.orphans_batch):
            self.look_at_answer(desk, request)
            if self._is_sure(desk, self.answers.get(request), now) and _take_back_answer(desk, request):
                self.answers.pop(request)  # published again after as much time, if unread

    def _find(self, found: OrderedDict[_K, _Orphan], key: _K, source: SourceName) -> None:
        """Note it; the first time counts."""
        if key not in found:
            found[key] = _Orphan(source, self.syncs.get(source, 0))

    def _is_sure(self, desk: Desk, orphan: _Orphan | None, now: float) -> bool:
        """Whether its source synced since it was found, its time passed, and STATE was read completely since."""
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
    """Whether no source has a request for a booking, or only a rejected one."""
    request = booking.request
    return not desk.world.speaks_of(request) or is_rejected(desk.world.requests.get(request), booking)


def _in_turn(found: OrderedDict[_K, _Orphan], batch: int) -> Iterator[_K]:
    """Those that were looked at longest ago, at most so many. The caller may remove them."""
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
    Publish `Released` (again) where no slice comes of the binding; after the grants are gone, never before.

    Returns whether it is published.
    """
    if request in desk.committing or desk.outbox.busy(subjects.binding(request)):
        return False
    answer = desk.world.bindings.get(request)
    if isinstance(answer, Bound) and may_come_yet(desk, answer.allocation):
        return False
    cause = answer.cause if isinstance(answer, Released) else "its request is gone"
    entries = (desk.world.ledger[allocation] for allocation in desk.world.allocations_of.get(request, ()))
    if any(not isinstance(entry, Closed) for entry in entries):
        return False
    if waits_for_node(desk, request, named_by(answer)) is not None:
        return False
    release(desk, request, cause)
    return True
