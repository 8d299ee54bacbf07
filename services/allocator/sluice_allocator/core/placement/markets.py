"""
GPUs of one kind in the order of what it would cost to make room on them, for every profile at once.

GPUs on which room costs the same, whatever the profile, stand together, so that a change on one moves one entry.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.contracts.ids import GpuUuid
from sluice_allocator.core.placement.clearing import Loss
from sluice_allocator.core.waiting.turns import Ordered

Seat = tuple[int, int, GpuUuid]
"""A GPU in the order of nodes: number of its node, its index there."""
Losses = tuple[Loss | None, ...]
"""What room costs, in the order of the columns; None where it cannot be made."""


@dataclass(slots=True, eq=False)
class Bucket:
    """GPUs on which room costs the same."""

    losses: Losses
    seats: Ordered[Seat] = field(default_factory=Ordered)


@dataclass(slots=True, eq=False)
class Market:
    """All GPUs of one kind. `columns` are the profiles."""

    columns: tuple[str, ...]
    _buckets: dict[Losses, Bucket] = field(default_factory=dict)
    _orders: dict[str, list[tuple[Loss, int, Bucket]]] = field(default_factory=dict)
    """Per profile that was asked for, the buckets in the order of what room for it costs."""
    _numbered: int = 0

    def put(self, losses: Losses, seat: Seat) -> Bucket:
        """A GPU on which room costs this."""
        bucket = self._buckets.get(losses)
        if bucket is None:
            bucket = self._buckets[losses] = Bucket(losses)
            for profile, order in self._orders.items():
                self._insert(order, bucket, self.columns.index(profile))
        bucket.seats.add(seat)
        return bucket

    def take(self, bucket: Bucket, seat: Seat) -> None:
        """A GPU is not there any more."""
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
