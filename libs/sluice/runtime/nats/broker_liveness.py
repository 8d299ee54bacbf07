"""
Detects a connected broker that stays silent, or acknowledges no write (as a cluster without quorum), and reports it.

Only time in which this process ran counts: a paused one finds its deadlines passed before it has read what arrived.
"""

import asyncio
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

REPORT_AFTER_S = 5.0
"""Leader election takes up to 8 s in a cluster and none on one server; longer silence is reported."""

CHECK_EVERY_S, CHECKS = 2.0, 3
"""How often to check that this process runs: not more often, and so often until the deadline."""
LATE_MAX_S = 1.0
"""A check this late means that the process was paused. A busy event loop is late by a tenth of that."""


class AwakeDeadline:
    """A deadline for the other side that counts only time in which this process ran."""

    def __init__(self, bound_s: float, now: float) -> None:
        self._bound_s = bound_s
        self._begin(now)

    @property
    def due(self) -> float:
        return min(self._looked_at + max(CHECK_EVERY_S, self._bound_s / CHECKS), self._over_at)

    def is_over(self, now: float) -> bool:
        """Whether the deadline has passed. It restarts after a check that is far too late: the process was paused."""
        late_s = now - self.due
        if late_s > LATE_MAX_S:
            self._begin(now)
            return False
        if self.due < self._over_at:
            self._over_at += max(0.0, late_s)
        self._looked_at = now
        return now >= self._over_at

    def _begin(self, now: float) -> None:
        self.began_at = self._looked_at = now
        self._over_at: float = now + self._bound_s


class BrokerLiveness:
    """For how long writes have had no answer in spite of a connection. For one event loop."""

    def __init__(self, log: FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._deadline: AwakeDeadline | None = None
        self._is_over = False
        self._told = False
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def lasts_s(self) -> float:
        return self._clock() - self._deadline.began_at if self._deadline is not None else 0.0

    def unanswered(self, *, connected: bool, clustered: bool) -> None:
        """A write had no answer. Ignored while disconnected, which is reported elsewhere."""
        if not connected:
            self._end()
            return
        if self._deadline is None:
            self._deadline = AwakeDeadline(REPORT_AFTER_S, self._clock())
        self.look()
        if not self._told and self._is_over:
            self._told = True
            self._log.error(
                "connected, but the broker answers no write: nothing can be granted or released until it does",
                for_s=round(self.lasts_s, 1),
                remedy=broker_hint(clustered=clustered),
            )

    def answered(self) -> None:
        if self._told:
            self._log.warning("the broker answers writes again", after_s=round(self.lasts_s, 1))
        self._end()
        self._told = False

    def look(self) -> None:
        """Check at intervals that this process runs, until the deadline has passed."""
        if self._deadline is None or self._is_over:
            return
        now = self._clock()
        self._is_over = self._deadline.is_over(now)
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = None
        if not self._is_over:
            self._next_look = asyncio.get_running_loop().call_later(self._deadline.due - now, self.look)

    def _end(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._deadline = None
        self._is_over = False


def broker_hint(*, clustered: bool) -> str:
    if clustered:
        return (
            "most servers of the cluster must run, two of three for instance, and have room on their disks: bring "
            "the others back; nothing is lost, and Sluice continues by itself"
        )
    return (
        "check the broker's log: is its disk full or slow? Free some space, then restart it; "
        "`sluice up` and a cluster's liveness probe do that. Nothing is lost"
    )
