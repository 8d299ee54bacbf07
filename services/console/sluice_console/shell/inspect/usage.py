"""Asks agents for the usage of their slices."""

from collections.abc import Awaitable, Callable

from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.usage import UsagesDocument, nodes_with_slices, usages_document
from sluice_console.shell.live.allocator_client import trusted

Ask = Callable[[FleetState], Awaitable[UsagesDocument]]


async def usages_at(fleet_state: FleetState) -> UsagesDocument:
    """Usage of all slices. Raises BusError if no agent can be asked."""
    try:
        security = trusted()
    except ServiceError as error:
        raise BusError(str(error)) from error
    found = await ask_agents(nodes_with_slices(fleet_state), security)
    answers = {node: answer for node, answer in found.items() if isinstance(answer, NodeUsage)}
    silent = {node: answer for node, answer in found.items() if isinstance(answer, str)}
    return usages_document(answers, silent)


async def usages_or_why(fleet_state: FleetState) -> UsagesDocument:
    """Usage of all slices, also when no agent can be asked: then each is silent for that reason."""
    try:
        return await usages_at(fleet_state)
    except BusError as error:
        return usages_document({}, dict.fromkeys(nodes_with_slices(fleet_state), str(error)))
