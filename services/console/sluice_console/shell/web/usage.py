"""
Usage of one pod's slices for the page, from its node's agent.

Many open pages do not become many questions to an agent: answers are cached for some seconds, and few agents are asked
at once.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from sluice.contracts.messages import AgentAddress
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.usage import UsagesDocument, usages_document
from sluice_console.shell.live.allocator_client import trusted

AT_ONCE = 8
COUNTS_FOR_S = 5.0
KEPT_MAX = 256
"""Nodes whose answers are cached."""
Ask = Callable[[str, AgentAddress], Awaitable[NodeUsage | str]]
"""The usage of a node, asked at an address; or why there is none."""


async def ask_agent(node: str, address: AgentAddress) -> NodeUsage | str:
    """One agent's answer, with the certificate from the environment."""
    try:
        security = trusted()
    except ServiceError as error:
        return str(error)
    return (await ask_agents({node: address}, security))[node]


class Usages:
    """Asks agents, a few at once, none too often."""

    def __init__(self, ask: Ask = ask_agent, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with an empty cache. `clock` in seconds."""
        self._ask = ask
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asking: dict[str, asyncio.Lock] = {}
        self._kept: OrderedDict[str, tuple[float, NodeUsage | str]] = OrderedDict()

    async def of(self, pod: PodDocument, address: AgentAddress) -> UsagesDocument:
        """The usage of one pod's slices, from its node's agent at `address`."""
        answer = await self._answer(pod.node, address)
        if isinstance(answer, str):
            return usages_document({}, {pod.node: answer})
        own = tuple(each for each in answer.slices if each.request == pod.request)
        return usages_document({pod.node: replace(answer, slices=own)}, {})

    async def _answer(self, node: str, address: AgentAddress) -> NodeUsage | str:
        async with self._asking.setdefault(node, asyncio.Lock()):
            known = self._kept.get(node)
            if known is not None and self._clock() - known[0] < COUNTS_FOR_S:
                return known[1]
            async with self._turns:
                answer = await self._ask(node, address)
            self._kept.pop(node, None)
            self._kept[node] = (self._clock(), answer)
            while len(self._kept) > KEPT_MAX:
                oldest, _ = self._kept.popitem(last=False)
                if not self._asking[oldest].locked():
                    del self._asking[oldest]
            return answer
