"""
What is booked of each namespace, added up as it is booked and given back: never by looking at all bookings.

It counts; it must not know limits (`quotas` does).
"""

from collections.abc import Iterator

from sluice.contracts.ids import AllocationId
from sluice.contracts.quotas.usage import NOTHING, Usage


class Accounts:
    """
    Per namespace, what its bookings count, and those of them that may still be taken back.

    Every booking is counted from its first moment, whether anybody has set a limit or not: a limit that comes late
    finds what already runs.
    """

    def __init__(self) -> None:
        """Nothing is booked."""
        self._used: dict[str, Usage] = {}
        self._open: dict[str, dict[AllocationId, None]] = {}
        self.given_back: dict[str, None] = {}
        """The namespaces that have had less at some time since somebody looked."""

    def used(self, namespace: str) -> Usage:
        """What is booked of a namespace."""
        return self._used.get(namespace, NOTHING)

    def opened(self, namespace: str) -> Iterator[AllocationId]:
        """The bookings of a namespace that are not known to be bound, in the order of booking."""
        return iter(tuple(self._open.get(namespace, ())))

    def is_open(self, namespace: str, allocation: AllocationId) -> bool:
        """Whether a booking of a namespace is not known to be bound."""
        return allocation in self._open.get(namespace, ())

    def book(self, namespace: str, allocation: AllocationId, usage: Usage, *, is_open: bool) -> None:
        """An allocation is booked that was not; `is_open`: it may be taken back."""
        self.measured_anew(namespace, NOTHING, usage)
        if is_open:
            self.reopen(namespace, allocation)

    def unbook(self, namespace: str, allocation: AllocationId, usage: Usage) -> None:
        """An allocation is booked no more."""
        self.measured_anew(namespace, usage, NOTHING)
        self.settle(namespace, allocation)

    def reopen(self, namespace: str, allocation: AllocationId) -> None:
        """A booking is not bound, or not any more."""
        self._open.setdefault(namespace, {})[allocation] = None

    def settle(self, namespace: str, allocation: AllocationId) -> None:
        """A booking is bound, or gone."""
        known = self._open.get(namespace)
        if known is not None:
            known.pop(allocation, None)
            if not known:
                del self._open[namespace]

    def measured_anew(self, namespace: str, before: Usage, after: Usage) -> None:
        """What a booking counts has changed: its GPU was shown, or is shown otherwise, or not any more."""
        if before == after:
            return
        more = after - before
        used = self.used(namespace) + more
        if used == NOTHING:
            self._used.pop(namespace, None)
        else:
            self._used[namespace] = used
        if more.gpus < 0 or more.memory_mib < 0 or more.compute_permille < 0:
            self.given_back[namespace] = None
