"""Evictions: since when each is waited for, and pods exempt for a while. Losing it costs time, never a slice."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contracts.bus.subjects import Address
from sluice.contracts.delayed_queue import DelayedQueue, backoff_s
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Booking, DeviceGrant, Grant
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.key_index import drop
from sluice_allocator.core.quotas.retry import QuotaContext


@dataclass(slots=True)
class EvictionBackoff:
    """Evictions under way, and failed ones."""

    rules: SchedulerConfig
    look: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Allocations for which it may have changed whether they may be evicted."""
    taken: dict[AllocationId, AllocationId] = field(default_factory=dict)
    """Those whose place goes to a grant that is decided and not settled, with that grant."""
    _leaving: dict[str, dict[AllocationId, tuple[DeviceGrant, ...]]] = field(default_factory=dict)
    """By namespace, bookings that fill no guarantee: being revoked, in the way of a reservation that evicts, not in the
    ledger yet, or on a place that others still have. With their certain part: shares that are being resized keep the
    smaller size."""
    leaving_of: dict[AllocationId, str] = field(default_factory=dict)  # the same by allocation: its namespace
    _since: dict[RequestId, float] = field(default_factory=dict)
    _failures: dict[RequestId, int] = field(default_factory=dict)
    _until: dict[RequestId, float] = field(default_factory=dict)
    _delayed: DelayedQueue[RequestId] = field(default_factory=DelayedQueue)

    def take(self, promise: AllocationId, after: tuple[AllocationId, ...]) -> None:
        for each in after:
            self.taken[each] = promise
            self.look[each] = None

    def let_go(self, promise: AllocationId) -> None:
        """That grant is settled: the ledger decides from now on. A handful are unsettled at a time."""
        for each in [each for each, by in self.taken.items() if by == promise]:
            del self.taken[each]
            self.look[each] = None

    def leaves(self, namespace: str, allocation: AllocationId, keeps: tuple[DeviceGrant, ...] = ()) -> None:
        """A booking will be gone except for this part, or is not certain."""
        self._leaving.setdefault(namespace, {})[allocation] = keeps
        self.leaving_of[allocation] = namespace

    def settle(self, allocation: AllocationId) -> None:
        namespace = self.leaving_of.pop(allocation, None)
        if namespace is not None:
            drop(self._leaving, namespace, allocation)

    def leaving(self, namespace: str) -> Mapping[AllocationId, tuple[DeviceGrant, ...]]:
        """Bookings of a namespace that fill no guarantee except for these parts."""
        return self._leaving.get(namespace, {})

    def awaited(self, request: RequestId, now: float) -> None:
        """A pod's eviction is ordered, or its slice is waited for; called repeatedly."""
        if request not in self._since:
            self._since[request] = now
            self._look_later(request, now)

    @property
    def has_orders(self) -> bool:
        return bool(self._since)

    def over(self, request: RequestId) -> None:
        self._since.pop(request, None)

    @property
    def _patience_s(self) -> tuple[float, float]:
        """Until an eviction is carried out, and until its slice is gone."""
        return self.rules.eviction_patience_s, self.rules.eviction_gone_s

    def is_overdue(self, request: RequestId, now: float, *, done: bool) -> bool:
        """Whether an eviction has taken too long: until it was carried out, or (`done`) until the slice was gone."""
        since = self._since.get(request)
        return since is not None and now >= since + self._patience_s[done]

    def failed(self, request: RequestId, now: float) -> None:
        """A pod could not be evicted: exempt it for a while, longer each time."""
        self._failures[request] = failures = self._failures.get(request, 0) + 1
        self._until[request] = now + backoff_s(failures, self.rules.spare_first_s, self.rules.spare_max_s)
        self._look_later(request, now)

    def is_spared(self, request: RequestId, now: float) -> bool:
        return self._until.get(request, now) > now

    def due(self, now: float) -> list[RequestId]:
        """Requests to be looked at again because time passed."""
        requests = self._delayed.due(now, self.rules.settle_batch)
        for request in requests:
            self._look_later(request, now)
        return requests

    def _look_later(self, request: RequestId, now: float) -> None:
        """At the next time at which an answer changes that these give: `is_overdue`, `is_spared`."""
        times = [self._until[request]] if request in self._until else []
        if request in self._since:
            times += (self._since[request] + each for each in self._patience_s)
        if later := [each for each in times if each > now]:
            self._delayed.at(request, min(later))

    def forget(self, request: RequestId) -> None:
        self._since.pop(request, None)
        self._failures.pop(request, None)
        self._until.pop(request, None)


@dataclass(eq=False)
class PreemptionContext(QuotaContext):
    """With evictions, and with what fills no guarantee."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sparing = EvictionBackoff(self.rules)

    @property
    def nothing_else_to_do(self) -> bool:
        """Nor an allocation whose pod may be evicted from now on."""
        return not self.sparing.look and super().nothing_else_to_do

    def assume(self, booking: Booking) -> None:
        """It fills no guarantee before the ledger has it."""
        super().assume(booking)
        if booking.namespace in self.facts.quotas:
            self.sparing.leaves(booking.namespace, booking.allocation)

    def unassume(self, booking: Booking) -> bool:
        self.sparing.settle(booking.allocation)
        return super().unassume(booking)

    def grant(self, booking: Booking, after: tuple[AllocationId, ...] = (), *, evict: bool = False) -> None:
        """Its predecessors are no victims of another grant, and do not count as staying."""
        super().grant(booking, after, evict=evict)
        if after:
            self.sparing.take(booking.allocation, after)
        for each in after:
            self.cluster.spare(each)
            victim = self.cluster.booking(each) if evict else None
            if victim is not None:  # at once: what is decided in the same event must not count on it
                self.sparing.leaves(victim.namespace, each)

    def roll_back(self, message: Grant) -> None:
        """Until it is booked again it evicts no pod."""
        super().roll_back(message)
        self.sparing.look[message.booking.allocation] = None

    def end_assuming(self, booking: Booking) -> None:
        """Its predecessors are judged by the ledger again."""
        super().end_assuming(booking)
        if self.sparing.taken:
            self.sparing.let_go(booking.allocation)
        if booking.allocation in self.sparing.leaving_of:
            self.sparing.look[booking.allocation] = None

    def look_again(self, address: Address) -> None:
        super().look_again(address)
        if address.kind == "ledger" and (allocation := AllocationId(address.key[1])) in self.sparing.leaving_of:
            self.sparing.look[allocation] = None
