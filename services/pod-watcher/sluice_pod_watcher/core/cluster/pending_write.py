"""Writes of one kind to one object: one at a time, with a growing pause after failures."""

from dataclasses import dataclass

from sluice.contracts.ids import RequestId
from sluice_pod_watcher.core.workqueue import DelayedQueue, backoff_s


@dataclass(slots=True)
class PendingWrite:
    """Whether a write is under way, and when the next may be tried."""

    under_way: bool = False
    failures: int = 0
    not_before: float = 0.0

    def may_start(self, uid: RequestId, queue: DelayedQueue, now: float) -> bool:
        """Whether a write may start now; it then counts as started. Otherwise the pod is reconciled when it may."""
        if self.under_way:
            return False
        if now < self.not_before:
            queue.at(uid, self.not_before)
            return False
        self.under_way = True
        return True

    def failed(self, uid: RequestId, queue: DelayedQueue, now: float, *, initial_s: float, max_s: float) -> None:
        """It failed: the next one waits, and the pod is reconciled then."""
        self.under_way = False
        self.failures += 1
        self.not_before = now + backoff_s(self.failures, initial_s, max(initial_s, max_s))
        queue.at(uid, self.not_before)
