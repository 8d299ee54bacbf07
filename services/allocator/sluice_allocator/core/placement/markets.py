"""
Orders GPUs of one kind by the cost of making room on them, for every profile at once.

GPUs with the same costs for all profiles share a bucket, so a change on one moves one entry.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.ids import GpuUuid
from sluice_allocator.core.placement.clearing import Loss
from sluice_allocator.core.sorted_keys import SortedKeys

Seat = tuple[int, int, GpuUuid]
"""A GPU in node order: number of its node, its index there."""
Losses = tuple[Loss | None, ...]
"""The cost of room, in the order of the columns; None where it cannot be made."""


@dataclass(slots=True, eq=False)
class Bucket:
    """GPUs with equal costs."""

    losses: Losses
    seats: SortedKeys[Seat] = field(default_factory=SortedKeys)


@dataclass(slots=True, eq=False)
class Market:
    """All GPUs of one kind. `columns` are the profiles."""

    columns: tuple[str, ...]
    _buckets: dict[Losses, Bucket] = field(default_factory=dict)
    _orders: dict[str, list[tuple[Loss, int, Bucket]]] = field(default_factory=dict)
    """Per requested profile, the buckets in order of cost."""
    _numbered: int = 0

    def put(self, losses: Losses, seat: Seat) -> Bucket:
        """Add a GPU with these costs."""
        bucket = self._buckets.get(losses)
        if bucket is None:
            bucket = self._buckets[losses] = Bucket(losses)
            for profile, order in self._orders.items():
                self._insert(order, bucket, self.columns.index(profile))
        bucket.seats.add(seat)
        return bucket

    def take(self, bucket: Bucket, seat: Seat) -> None:
        """Remove a GPU."""
        bucket.seats.remove(seat)
        if bucket.seats:
            return
        del self._buckets[bucket.losses]
        for profile, order in self._orders.items():
            loss = bucket.losses[self.columns.index(profile)]
            if loss is not None:
                at = bisect.bisect_left(order, loss, key=_loss_in)
                while order[at][2] is not bucket:
                    at += 1
                del order[at]

    def order(self, profile: str) -> Sequence[tuple[Loss, int, Bucket]]:
        """The buckets where there can be room for a profile, cheapest first."""
        order = self._orders.get(profile)
        if order is None:
            order = self._orders[profile] = []
            for bucket in self._buckets.values():
                self._insert(order, bucket, self.columns.index(profile))
        return order

    def _insert(self, order: list[tuple[Loss, int, Bucket]], bucket: Bucket, column: int) -> None:
        loss = bucket.losses[column]
        if loss is not None:
            self._numbered += 1
            bisect.insort(order, (loss, self._numbered, bucket))


def _loss_in(entry: tuple[Loss, int, Bucket]) -> Loss:
    return entry[0]
