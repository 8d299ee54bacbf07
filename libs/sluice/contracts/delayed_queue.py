"""What a core does later: keys to look at again, each at a time, and how long to wait after failures. On `now` (s)."""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=str | bytes)


@dataclass(slots=True)
class DelayedQueue(Generic[K]):
    """Keys to look at again, each once at the earliest time that was asked for; what else it waits for is asked again
    then. Asking costs what is due, independent of the rest."""

    _heap: list[tuple[float, K]] = field(default_factory=list)
    _at: dict[K, float] = field(default_factory=dict)

    def at(self, key: K, when: float) -> None:
        """Look at it at that time, or earlier if already planned."""
        known = self._at.get(key)
        if known is None or when < known:
            self._at[key] = when
            heapq.heappush(self._heap, (when, key))

    def due(self, now: float, most: int | None = None) -> list[K]:
        """The keys whose time has come, the earliest first, at most so many. Each is planned no longer."""
        found: list[K] = []
        while self._heap and self._heap[0][0] <= now and len(found) != most:
            when, key = heapq.heappop(self._heap)
            if self._at.get(key) == when:  # else an earlier time was planned, and is over
                del self._at[key]
                found.append(key)
        return found


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """The pause after that many failures in a row, 1 or more: doubling, with a cap."""
    return min(first_s * 2.0 ** min(failures - 1, 30), longest_s)
