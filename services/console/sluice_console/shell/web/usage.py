"""Usage of slices for the page, from their agents: of one pod when it is looked at, and of all for what is idle."""

import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from sluice.contracts.messages import AgentAddress
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.usage import IDLE_S, UsagesDocument, usages_document
from sluice_console.shell.live.allocator_client import trusted
from sluice_console.shell.web.answers import AnswerCache

AT_ONCE = 8
COUNTS_FOR_S = 5.0
KEPT_MAX = 256
"""Nodes whose answers are cached."""
IDLE_COUNTS_FOR_S = 60.0
"""Idle is what lasts: asking all agents once a minute shows it soon enough."""
Ask = Callable[[Mapping[str, AgentAddress]], Awaitable[Mapping[str, NodeUsage | str]]]
"""The usage of nodes, asked at their addresses; or why there is none."""


async def ask_nodes(addresses: Mapping[str, AgentAddress]) -> Mapping[str, NodeUsage | str]:
    """The agents' answers, with the certificate from the environment."""
    try:
        security = trusted()
    except ServiceError as error:
        return dict.fromkeys(addresses, str(error))
    return await ask_agents(dict(addresses), security)


class Usages:
    """Asks agents, a few at once, none too often."""

    def __init__(self, ask: Ask = ask_nodes, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with an empty cache. `clock` in seconds."""
        self._ask = ask
        self._nodes = AnswerCache(
            self._of_node, counts_for_s=COUNTS_FOR_S, kept_max=KEPT_MAX, at_once=AT_ONCE, clock=clock
        )
        self._idle = AnswerCache(self._of_fleet, counts_for_s=IDLE_COUNTS_FOR_S, kept_max=1, at_once=1, clock=clock)

    async def of(self, pod: PodDocument, address: AgentAddress) -> UsagesDocument:
        """The usage of one pod's slices, from its node's agent at `address`."""
        answer = await self._nodes.of(pod.node, address)
        if isinstance(answer, str):
            return usages_document({}, {pod.node: answer})
        own = tuple(each for each in answer.slices if each.request == pod.request)
        return usages_document({pod.node: replace(answer, slices=own)}, {})

    async def idle(self, addresses: Callable[[], Mapping[str, AgentAddress]]) -> UsagesDocument:
        """Slices idle for an hour or longer, of all agents at `addresses`."""
        return await self._idle.of("", addresses)

    async def _of_node(self, node: str, address: AgentAddress) -> NodeUsage | str:
        return (await self._ask({node: address}))[node]

    async def _of_fleet(self, _key: str, addresses: Callable[[], Mapping[str, AgentAddress]]) -> UsagesDocument:
        found = await self._ask(addresses())
        answers = {node: answer for node, answer in found.items() if isinstance(answer, NodeUsage)}
        silent = {node: answer for node, answer in found.items() if isinstance(answer, str)}
        return usages_document(answers, silent, idle_s=IDLE_S)
