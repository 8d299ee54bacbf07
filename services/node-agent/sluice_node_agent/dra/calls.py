"""The kubelet's calls about claims on their way to the agent's core, and its answers."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from sluice_node_agent.core.events import Event, PrepareAsked, UnprepareAsked
from sluice_node_agent.core.instructions import AnswerCall

WITHIN_S = 43.0
"""The kubelet ends a call after 45 s, without a reason; the core answers after 40 s at the latest, if it runs."""


class KubeletCalls:
    """Calls of one run of the agent. For one event loop."""

    def __init__(self, offer: Callable[[Event], Awaitable[None]], *, within_s: float = WITHIN_S) -> None:
        self._offer = offer
        self._within_s = within_s
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[AnswerCall]] = {}

    async def prepare(self, claim: str, name: str) -> AnswerCall:
        call = next(self._numbers)
        return await self._answer(call, PrepareAsked(call, claim, name))

    async def unprepare(self, claim: str, name: str) -> AnswerCall:
        call = next(self._numbers)
        return await self._answer(call, UnprepareAsked(call, claim, name))

    async def carry_out(self, answer: AnswerCall) -> None:
        """The core's answer. A kubelet that gave up meanwhile gets none."""
        waiting = self._waiting.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _answer(self, call: int, event: PrepareAsked | UnprepareAsked) -> AnswerCall:
        waiting: asyncio.Future[AnswerCall] = asyncio.get_running_loop().create_future()
        self._waiting[call] = waiting
        try:
            async with asyncio.timeout(self._within_s):
                await self._offer(event)
                return await waiting
        except TimeoutError:
            return AnswerCall(call, error=f"ResourceClaim {event.name}: the node agent is too busy; it is tried again")
        finally:
            del self._waiting[call]
