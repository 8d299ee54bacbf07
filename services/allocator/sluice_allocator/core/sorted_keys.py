"""A sorted set for very many turns: add, remove, first, and next after any, none of which walks over all."""

import bisect
from typing import Generic, TypeVar

from sluice.contracts.ids import RequestId

QueueKey = tuple[int, int, RequestId]  # priority (negated), sequence of the request's first word, id
CHUNK_MAX = 512  # most turns per sorted chunk, which one insertion moves
T = TypeVar("T", bound=tuple[object, ...])


class SortedKeys(Generic[T]):
    """A sorted set of comparable tuples."""

    __slots__ = ("_chunks", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[T]] = []
        self._lasts: list[T] = []  # the last turn of each chunk

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, turn: T) -> None:
        if not self._chunks:
            self._chunks.append([turn])
            self._lasts.append(turn)
            return
        at = min(bisect.bisect_left(self._lasts, turn), len(self._chunks) - 1)
        chunk = self._chunks[at]
        bisect.insort(chunk, turn)
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks.insert(at + 1, chunk[half:])
            del chunk[half:]
            self._lasts.insert(at + 1, self._chunks[at + 1][-1])
        self._lasts[at] = chunk[-1]

    def remove(self, turn: T) -> None:
        at = bisect.bisect_left(self._lasts, turn)
        chunk = self._chunks[at]
        del chunk[bisect.bisect_left(chunk, turn)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def first(self) -> T:
        """The first turn. There must be one."""
        return self._chunks[0][0]

    def last(self) -> T:
        """The last turn. There must be one."""
        return self._lasts[-1]

    def after(self, turn: T | None) -> T | None:
        """The next turn after one that may be gone by now; the first after None. None at the end."""
        if turn is None:
            return self._chunks[0][0] if self._chunks else None
        at = bisect.bisect_right(self._lasts, turn)
        if at == len(self._chunks):
            return None
        chunk = self._chunks[at]
        return chunk[bisect.bisect_right(chunk, turn)]

    def before(self, turn: T) -> int:
        """How many turns are before one. Walks over the chunks, never over the turns."""
        at = bisect.bisect_left(self._lasts, turn)
        within = bisect.bisect_left(self._chunks[at], turn) if at < len(self._chunks) else 0
        return sum(len(chunk) for chunk in self._chunks[:at]) + within


QueueKeys = SortedKeys[QueueKey]  # a sorted set of turns
