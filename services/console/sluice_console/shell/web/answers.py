"""Answers of other services, for many open pages: each is asked for once, and counts for some seconds."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
A = TypeVar("A")


class AnswerCache(Generic[K, A, V]):
    """Asks with an argument, a few at once; answers by key. A question that fails is not remembered."""

    def __init__(
        self,
        ask: Callable[[K, A], Awaitable[V]],
        *,
        counts_for_s: float,
        kept_max: int,
        at_once: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty. `clock` in seconds."""
        self._ask = ask
        self._counts_for_s = counts_for_s
        self._kept_max = kept_max
        self._clock = clock
        self._turns = asyncio.Semaphore(at_once)
        self._asking: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        """Of those who ask now."""
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        """Number of answers kept."""
        return len(self._kept)

    async def of(self, key: K, argument: A) -> V:
        """The answer, which may be some seconds old. Raises what asking raises."""
        async with self._asking.setdefault(key, asyncio.Lock()):
            known = self._kept.get(key)
            if known is not None and self._clock() - known[0] < self._counts_for_s:
                return known[1]
            async with self._turns:
                answer = await self._ask(key, argument)
            self._kept.pop(key, None)
            self._kept[key] = (self._clock(), answer)
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
            return answer
