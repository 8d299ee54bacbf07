"""
What this process remembers of evictions: since when each is waited for, and whom to leave alone for a while.

Losing it costs time, never a slice: an eviction that cannot be carried out is then waited for anew.
"""

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import DeviceGrant
from sluice_allocator.core.rules import Rules


@dataclass(slots=True)
class Sparing:
    """Evictions under way, and those that came to nothing."""

    rules: Rules
    look: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Allocations of which it may have changed whether they may be evicted."""
    taken: dict[AllocationId, AllocationId] = field(default_factory=dict)
    """Those for whose place a grant is decided and not settled, with that grant."""
    _leaving: dict[str, dict[AllocationId, tuple[DeviceGrant, ...]]] = field(default_factory=dict)
    """
    By namespace, what is booked and fills no guarantee: being taken away, in the way of a promise that evicts, or not
    in the ledger yet, or a place that others have yet, so that it may never be there. With what of it does: shares that
    are being made smaller, or larger, have that for sure.
    """
    leaving_of: dict[AllocationId, str] = field(default_factory=dict)
    """The same by allocation: its namespace."""
    _since: dict[RequestId, float] = field(default_factory=dict)
    _failures: dict[RequestId, int] = field(default_factory=dict)
    _until: dict[RequestId, float] = field(default_factory=dict)
    _alarms: list[tuple[float, RequestId]] = field(default_factory=list)
    """A heap of when to look again at a request."""

    # -- who is in the way of a promise ---------------------------------------------------------------------------

    def take(self, promise: AllocationId, after: tuple[AllocationId, ...]) -> None:
        """A grant is decided that is to come after these."""
        for each in after:
            self.taken[each] = promise
            self.look[each] = None

    def let_go(self, promise: AllocationId) -> None:
        """That grant is settled: what holds now is what the ledger says. A handful are unsettled at a time."""
        for each in [each for each, by in self.taken.items() if by == promise]:
            del self.taken[each]
            self.look[each] = None

    def leaves(self, namespace: str, allocation: AllocationId, keeps: tuple[DeviceGrant, ...] = ()) -> None:
        """What is booked for an allocation will be gone but for this, or is not sure to be had, as far as is known."""
        self._leaving.setdefault(namespace, {})[allocation] = keeps
        self.leaving_of[allocation] = namespace

    def is_gone(self, allocation: AllocationId) -> None:
        """It is gone, or stays after all."""
        namespace = self.leaving_of.pop(allocation, None)
        if namespace is not None:
            del self._leaving[namespace][allocation]
            if not self._leaving[namespace]:
                del self._leaving[namespace]

    def leaving(self, namespace: str) -> Mapping[AllocationId, tuple[DeviceGrant, ...]]:
        """What is booked of a namespace and fills no guarantee but by these: it will be gone, or may never be had."""
        return self._leaving.get(namespace, {})

    # -- evictions that take time ---------------------------------------------------------------------------------

    def awaited(self, request: RequestId, now: float) -> None:
        """A pod's eviction is ordered, or what it had is waited for when it has gone; said again and again."""
        if request not in self._since:
            self._since[request] = now
            for patience_s in (self.rules.eviction_patience_s, self.rules.eviction_gone_s):
                heapq.heappush(self._alarms, (now + patience_s, request))

    @property
    def has_orders(self) -> bool:
        """Whether this process waits for any eviction that is not over."""
        return bool(self._since)

    def over(self, request: RequestId) -> None:
        """It need not be evicted any more, or nothing that anybody waits for is left of it."""
        self._since.pop(request, None)

    def is_overdue(self, request: RequestId, now: float, *, done: bool) -> bool:
        """Whether an eviction has taken too long: until it was carried out, or (`done`) until the slice was gone."""
        since = self._since.get(request)
        patience_s = self.rules.eviction_gone_s if done else self.rules.eviction_patience_s
        return since is not None and now - since >= patience_s

    def failed(self, request: RequestId, now: float) -> None:
        """A pod could not be evicted: leave it alone for a while, longer each time."""
        failures = self._failures.get(request, 0)
        pause_s = min(self.rules.spare_first_s * 2 ** min(failures, 30), self.rules.spare_max_s)
        self._failures[request] = failures + 1
        self._until[request] = now + pause_s
        heapq.heappush(self._alarms, (now + pause_s, request))

    def is_spared(self, request: RequestId, now: float) -> bool:
        """Whether a pod is to be left alone at the moment."""
        return self._until.get(request, now) > now

    def due(self, now: float) -> list[RequestId]:
        """Requests to be looked at again, for something about their eviction was only a matter of time."""
        requests: dict[RequestId, None] = {}
        while self._alarms and self._alarms[0][0] <= now and len(requests) < self.rules.settle_batch:
            requests[heapq.heappop(self._alarms)[1]] = None
        return list(requests)

    def forget(self, request: RequestId) -> None:
        """A request will not be seen again."""
        self._since.pop(request, None)
        self._failures.pop(request, None)
        self._until.pop(request, None)
