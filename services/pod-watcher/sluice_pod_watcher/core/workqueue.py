"""Rates, turns, writes with backoff, and a bounded memory. Arithmetic on `now` (s)."""

from dataclasses import dataclass, field
from typing import TypeVar

from sluice.contracts.delayed_queue import DelayedQueue, backoff_s
from sluice.contracts.ids import RequestId

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class TokenBucket:
    """A rate per second, with a burst after a quiet time."""

    per_s: float
    burst: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, now: float) -> bool:
        if self._at is not None:
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class FairLine:
    """Pods that share a budget, first come first served, so that the busiest pod does not starve others."""

    budget: TokenBucket
    _waiting: dict[RequestId, None] = field(default_factory=dict)
    _called: set[RequestId] = field(default_factory=set)

    def take_turn(self, uid: RequestId, now: float) -> bool:
        """Use this pod's turn, if it has one. Otherwise the pod queues."""
        if uid in self._called:
            self._called.discard(uid)
            return True
        if not self._waiting and self.budget.take(now):
            return True
        self._waiting[uid] = None
        return False

    def leave(self, uid: RequestId) -> None:
        self._waiting.pop(uid, None)

    def turns(self, now: float) -> list[RequestId]:
        """Whose turn it is now. Turns that were not used expire."""
        found: list[RequestId] = []
        while self._waiting and self.budget.take(now):
            found.append(next(iter(self._waiting)))
            del self._waiting[found[-1]]
        self._called = set(found)
        return found


def remember(those: dict[K, V], key: K, value: V, *, at_most: int) -> None:
    """Set what is the latest now. Of more than `at_most`, the oldest goes; of very many give an OrderedDict."""
    those.pop(key, None)
    those[key] = value
    if len(those) > at_most:
        del those[next(iter(those))]


@dataclass(slots=True)
class PendingWrite:
    """Whether a write is under way, and when the next may be tried."""

    under_way: bool = False
    failures: int = 0
    not_before: float = 0.0

    def start(self, uid: RequestId, queue: DelayedQueue[RequestId], now: float) -> bool:
        """Start a write, if it may start now. Otherwise the pod is reconciled when it may."""
        if self.under_way:
            return False
        if now < self.not_before:
            queue.at(uid, self.not_before)
            return False
        self.under_way = True
        return True

    def failed(
        self, uid: RequestId, queue: DelayedQueue[RequestId], now: float, *, initial_s: float, max_s: float
    ) -> None:
        """It failed: the next one waits, and the pod is reconciled then."""
        self.under_way = False
        self.failures += 1
        self.not_before = now + backoff_s(self.failures, initial_s, max(initial_s, max_s))
        queue.at(uid, self.not_before)
