"""
Carries adjustments from whoever asks over gRPC into the core, and its answers back. It decides nothing.

The core answers when the ledger has. Whoever waited for too long is told that it is not known: what was asked for are
values, not differences, so asking again does no harm.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.sizes.adjustments import Change, Outcome

ANSWER_WITHIN_S = 10.0
"""A write is settled within tens of milliseconds; a broker that is away for longer than this may be away for long."""


class ShareResizer:
    """Those who wait for an answer, by number."""

    def __init__(self, *, within_s: float = ANSWER_WITHIN_S) -> None:
        """Wait so long for each answer, in seconds."""
        self._within_s = within_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}

    async def ask(self, change: Change, *, offer: Callable[[AdjustAsked], Awaitable[None]]) -> Outcome:
        """What came of it; `offer` gives the core an event. Raises TimeoutError when that is not known in time."""
        number = next(self._numbers)
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            async with asyncio.timeout(self._within_s):
                await offer(AdjustAsked(number, change))
                return await waiting
        finally:
            del self._waiting[number]

    async def answer(self, answer: AnswerAdjust) -> None:
        """The core has an answer; whoever does not wait any more gets none."""
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)
