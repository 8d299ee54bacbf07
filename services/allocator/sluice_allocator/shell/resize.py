"""Carries resize requests from gRPC into the core, and the core's answers back. The core answers once the ledger has. A
caller that waits too long gets TimeoutError, with the outcome unknown: requests carry absolute values, not differences,
so a retry is safe."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.resize.pending import Change, Outcome

ANSWER_WITHIN_S = 10.0  # a write settles within tens of milliseconds; a broker that is away may be away for long


class ShareResizer:
    """Pending callers, by number."""

    def __init__(self, *, within_s: float = ANSWER_WITHIN_S) -> None:
        """Each answer is awaited for at most `within_s` seconds."""
        self._within_s = within_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}

    async def ask(self, change: Change, *, offer: Callable[[AdjustAsked], Awaitable[None]]) -> Outcome:
        """The outcome of a change; `offer` gives the core an event. Raises TimeoutError when it is late."""
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
        """Pass the core's answer to its caller, if that still waits."""
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)
