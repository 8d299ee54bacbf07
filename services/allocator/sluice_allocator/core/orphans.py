"""
Grants that nobody asks for (PROTOCOL §6): unmade only when their source has told all it has, and some time after.

Agents report before sources have listed; without this rule a wiped broker would end living training.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts import subjects
from sluice.contracts.ids import AllocationId, SourceName
from sluice.contracts.messages import Grant, Revoke, SourceSynced
from sluice_allocator.core.desk import Desk


@dataclass(slots=True)
class _Orphan:
    syncs_seen: int
    """How often its source had synced when it was found."""
    synced_at: float | None = None
    """When its source synced after that."""


@dataclass(slots=True)
class Orphans:
    """Which grants have no request, and since when that is sure."""

    syncs: dict[SourceName, int] = field(default_factory=dict)
    """How often each source was heard to be complete, by this process, outside snapshots."""
    found: OrderedDict[AllocationId, _Orphan] = field(default_factory=OrderedDict)
    """Those that were looked at longest ago first."""

    def heard(self, desk: Desk, synced: SourceSynced) -> None:
        """A source has told all it has, if as many live requests are known here as it counts."""
        known = len(desk.world.requested_by.get(synced.source, ()))
        if known >= synced.count:
            self.syncs[synced.source] = self.syncs.get(synced.source, 0) + 1

    def look(self, desk: Desk, allocation: AllocationId) -> None:
        """Remember a grant that has no request; forget it when it has one again. One that cannot be read is one."""
        entry = desk.world.ledger.get(allocation)
        if isinstance(entry, Grant) and not desk.world.speaks_of(entry.booking.request):
            if allocation not in self.found:
                self.found[allocation] = _Orphan(self.syncs.get(entry.booking.source, 0))
        else:
            self.found.pop(allocation, None)

    def tick(self, desk: Desk, now: float) -> None:
        """Revoke what is an orphan for sure, among a bounded number, in turn."""
        for _ in range(min(desk.rules.orphans_batch, len(self.found))):
            if not self.found:
                return
            allocation = next(iter(self.found))
            self.found.move_to_end(allocation)
            self.look(desk, allocation)
            orphan, entry = self.found.get(allocation), desk.world.ledger.get(allocation)
            if orphan is None or not isinstance(entry, Grant):
                continue
            if orphan.synced_at is None:
                if self.syncs.get(entry.booking.source, 0) > orphan.syncs_seen:
                    orphan.synced_at = now
                continue
            address = subjects.ledger(entry.booking.node, allocation)
            if now - orphan.synced_at >= desk.rules.orphan_grace_s and not desk.outbox.busy(address):
                revoke = Revoke(
                    revision=entry.revision + 1,
                    incarnation=desk.world.incarnation,
                    booking=entry.booking,
                    cause="orphan: its source does not ask for it any more",
                    after=entry.after,
                )
                desk.commit(address, revoke, entry.booking.request)
