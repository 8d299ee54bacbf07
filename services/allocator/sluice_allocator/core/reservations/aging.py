"""Tracks when waiting requests are old enough for a reservation, and how many GPUs are reserved. The times are memory
of one process: if lost, a request waits longer. The count of reservations follows from the ledger."""

import heapq
from collections import Counter
from dataclasses import dataclass, field

from sluice.contracts.delayed_queue import DelayedQueue
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Booking, Grant
from sluice_allocator.core.key_index import count
from sluice_allocator.core.preemption.eviction_backoff import PreemptionContext
from sluice_allocator.core.sorted_keys import QueueKey, SortedKeys


@dataclass(slots=True)
class Aging:
    """Shapes of waiting requests, by when their first is to be looked at; those that are due, by turn."""

    later: DelayedQueue[bytes] = field(default_factory=DelayedQueue)  # those that are not due
    _due: list[tuple[QueueKey, bytes]] = field(default_factory=list)
    _claims: dict[str, SortedKeys[tuple[QueueKey, bytes]]] = field(default_factory=dict)
    """Per model the due shapes that others' reservations kept out."""
    _claimed: dict[bytes, tuple[QueueKey, frozenset[str]]] = field(default_factory=dict)  # turn and models, by shape

    def mark_due(self, shape: bytes, turn: QueueKey) -> None:
        """The first of a shape has waited long enough: it gets a reservation in its turn."""
        heapq.heappush(self._due, (turn, shape))

    def next_due(self) -> tuple[QueueKey, bytes] | None:
        """The earliest turn among those that have waited long enough, which is removed."""
        return heapq.heappop(self._due) if self._due else None

    def claim(self, shape: bytes, turn: QueueKey, models: frozenset[str]) -> None:
        """The first of a shape is kept out by reservations: the next one of these models is its, in its turn."""
        if self._claimed.get(shape) != (turn, models):
            self.no_claim(shape)
            self._claimed[shape] = (turn, models)
            for model in models:
                self._claims.setdefault(model, SortedKeys()).add((turn, shape))

    def no_claim(self, shape: bytes) -> None:
        """The first of a shape has a reservation, or could have none however few others had."""
        held = self._claimed.pop(shape, None)
        if held is None:
            return
        for model in held[1]:
            claims = self._claims[model]
            claims.remove((held[0], shape))
            if not claims:
                del self._claims[model]

    def first_claim(self, model: str) -> tuple[QueueKey, bytes] | None:
        """The earliest turn among those kept out of a model."""
        claims = self._claims.get(model)
        return claims.first() if claims is not None else None


@dataclass(slots=True)
class ReservedGpus:
    """How many GPUs of each model are reserved while their tenants still run."""

    of_model: Counter[str] = field(default_factory=Counter)
    freed: dict[str, None] = field(default_factory=dict)  # models whose reservations ended since this was last taken
    _models: dict[AllocationId, tuple[str, ...]] = field(default_factory=dict)  # of an allocation's GPUs, each once

    def __contains__(self, allocation: AllocationId) -> bool:
        return allocation in self._models

    def count(self, allocation: AllocationId, models: tuple[str, ...]) -> None:
        """A reservation stands. Counting it twice is once."""
        if self._models.get(allocation) != models:
            self.forget(allocation)
            self._models[allocation] = models
            self.of_model.update(models)

    def forget(self, allocation: AllocationId) -> None:
        for model in self._models.pop(allocation, ()):
            self.freed[model] = None
            count(self.of_model, model, -1)


@dataclass(eq=False)
class ReservationContext(PreemptionContext):
    """With the times and the count of reservations."""

    aging: Aging = field(default_factory=Aging)
    promised: ReservedGpus = field(default_factory=ReservedGpus)

    def grant(self, booking: Booking, after: tuple[AllocationId, ...] = (), *, evict: bool = False) -> None:
        super().grant(booking, after, evict=evict)
        if after and not evict:
            self.promised.count(booking.allocation, self.cluster.models_of(booking))

    def roll_back(self, message: Grant) -> None:
        """It is no longer reserved, unless the ledger says otherwise."""
        super().roll_back(message)
        if message.booking.allocation not in self.facts.ledger:
            self.promised.forget(message.booking.allocation)
