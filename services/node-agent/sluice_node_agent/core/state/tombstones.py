"""
Tombstones of gone slices: their closing status until its readers have it, and how long they are remembered: longer than
any closing message, so that a late order can never bring a slice back (PROTOCOL §5, §8).
"""

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import SliceGone
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.journal_records import Tombstone
from sluice_node_agent.core.publish.slice_status import gone_message


class Tombstones:
    """All tombstones of one node."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._by_allocation: dict[AllocationId, Tombstone] = {}
        self._closed_at: dict[AllocationId, float] = {}
        """When each was closed, so that no reader waits for its status; oldest first."""
        self._said: dict[AllocationId, None] = {}
        """Those whose closing status is on the bus, as far as is known."""

    def __contains__(self, allocation: object) -> bool:
        """Whether the allocation has a tombstone."""
        return allocation in self._by_allocation

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._by_allocation)

    def __getitem__(self, allocation: AllocationId) -> Tombstone:
        """The tombstone of an allocation."""
        return self._by_allocation[allocation]

    def open_ones(self) -> list[AllocationId]:
        """The gone slices whose closing status was not published yet."""
        return [allocation for allocation in self._by_allocation if allocation not in self._said]

    def recheck(self, now: float) -> None:
        """The bus may have lost what it acknowledged: publish closing statuses again that should still be there."""
        for allocation, since in self._closed_at.items():
            if now - since < self._config.closing_ttl_s:
                self._said.pop(allocation, None)

    def closed_anew(self, allocation: AllocationId) -> None:
        """
        The ledger repeats that a gone slice is closed: the bus has lost what followed, so publish its closing status
        again.
        """
        self._said.pop(allocation, None)

    def put(self, stone: Tombstone) -> None:
        """A slice is gone."""
        self._by_allocation[stone.allocation] = stone

    def word(self, allocation: AllocationId, *, closed: bool, now: float) -> tuple[SliceGone, int | None] | None:
        """The status of a gone slice and its lifetime in seconds; None when it was published already."""
        stone = self._by_allocation[allocation]
        if not closed:
            self._closed_at.pop(allocation, None)
            self._said.pop(allocation, None)
            return gone_message(stone, closing=False), None
        if allocation in self._said:
            return None
        self._said[allocation] = None
        self._closed_at.setdefault(allocation, now)
        return gone_message(stone, closing=True), self._config.closing_ttl_s

    def forget_old(self, now: float) -> list[AllocationId]:
        """Drop those that no order can refer to any more; returns them."""
        old = []
        for allocation, since in self._closed_at.items():
            if now - since < self._config.tombstone_ttl_s:
                break
            old.append(allocation)
        for allocation in old:
            del self._closed_at[allocation]
            del self._by_allocation[allocation]
            self._said.pop(allocation, None)
        return old
