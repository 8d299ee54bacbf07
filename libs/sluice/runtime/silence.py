"""
A broker that is there and answers no write: said once, with what it may be, and shown for as long as it lasts.

It is what a cluster of brokers looks like that has lost most of its servers: clients stay connected, and nothing is
written. Nothing is decided from it; what a write without an answer means, its writer settles.
"""

import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

TELL_AFTER_S = 5.0
"""Electing another leader takes up to 8 s in a cluster and none on one server; after this it may be more than that."""


class Silence:
    """Since when writes have had no answer although there is a connection."""

    def __init__(self, log: FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        """All is well."""
        self._log = log
        self._clock = clock
        self._since: float | None = None
        self._told = False

    @property
    def lasts_s(self) -> float:
        """How long it lasts already; 0 while writes are answered."""
        return self._clock() - self._since if self._since is not None else 0.0

    def unanswered(self, *, connected: bool, clustered: bool) -> None:
        """A write had no answer. While not connected that is no wonder, and said elsewhere."""
        if not connected:
            self._since = None
            return
        if self._since is None:
            self._since = self._clock()
        if not self._told and self.lasts_s >= TELL_AFTER_S:
            self._told = True
            self._log.error(
                "connected, but the broker answers no write: nothing can be granted or given back until it does",
                for_s=round(self.lasts_s, 1),
                remedy=remedy(clustered=clustered),
            )

    def answered(self) -> None:
        """A write was answered, whatever the answer."""
        if self._told:
            self._log.warning("the broker answers writes again", after_s=round(self.lasts_s, 1))
        self._since, self._told = None, False


def remedy(*, clustered: bool) -> str:
    """What to do about it."""
    if clustered:
        return (
            "most servers of the cluster must be there, two of three for instance: bring the others back; nothing is "
            "lost, and all goes on by itself"
        )
    return "look into the broker's log: is its disk full or slow? nothing is lost, and all goes on by itself"
