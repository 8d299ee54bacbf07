"""When something may be done again: wake-ups by pod, a bounded rate, pauses that grow. Arithmetic on `now` (s)."""

import heapq
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId


@dataclass(slots=True)
class DelayedQueue:
    """Pods that have to be looked at when time comes. Looking costs what is due, whatever else there is."""

    _heap: list[tuple[float, RequestId]] = field(default_factory=list)
    _at: dict[RequestId, float] = field(default_factory=dict)

    def at(self, uid: RequestId, when: float) -> None:
        """Look at a pod at that time, or earlier if that was asked for already."""
        known = self._at.get(uid)
        if known is None or when < known:
            self._at[uid] = when
            heapq.heappush(self._heap, (when, uid))

    def due(self, now: float) -> list[RequestId]:
        """The pods whose time has come."""
        found: list[RequestId] = []
        while self._heap and self._heap[0][0] <= now:
            when, uid = heapq.heappop(self._heap)
            if self._at.get(uid) == when:  # else an earlier one was asked for, and has been
                del self._at[uid]
                found.append(uid)
        return found


@dataclass(slots=True)
class TokenBucket:
    """So many a second, and some more after a quiet time."""

    per_s: float
    burst: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        """Begin with the whole burst."""
        self._left = self.burst

    def take(self, now: float) -> bool:
        """Whether one more may be done now; it then counts as done."""
        if self._at is not None:
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class FairLine:
    """Pods that want the same budget, first come first served: whoever is busiest does not starve the others."""

    budget: TokenBucket
    _waiting: dict[RequestId, None] = field(default_factory=dict)
    _called: set[RequestId] = field(default_factory=set)

    def may_go(self, uid: RequestId, now: float) -> bool:
        """Whether it is this pod's turn; it is then used up. Else the pod stands in line."""
        if uid in self._called:
            self._called.discard(uid)
            return True
        if not self._waiting and self.budget.take(now):
            return True
        self._waiting[uid] = None
        return False

    def leave(self, uid: RequestId) -> None:
        """The pod wants nothing any more."""
        self._waiting.pop(uid, None)

    def turns(self, now: float) -> list[RequestId]:
        """Whose turn it is now; turns that nobody took are over."""
        found: list[RequestId] = []
        while self._waiting and self.budget.take(now):
            found.append(next(iter(self._waiting)))
            del self._waiting[found[-1]]
        self._called = set(found)
        return found


def backoff_s(failures: int, initial_s: float, max_s: float) -> float:
    """How long to wait after that many failures in a row: doubling, with a cap."""
    return float(min(initial_s * 2 ** min(failures - 1, 30), max_s))
