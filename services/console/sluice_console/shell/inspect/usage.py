"""`sluice usage`: asks the agents that have slices what those are used for, and prints it."""

import asyncio
from collections.abc import Mapping

import grpc.aio

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import NodeName
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.slice_usage import usage_from_proto
from sluice.contracts.reasons import shorten
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TransportSecurity
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.usage import (
    COLUMNS,
    UsagesDocument,
    duration_text,
    nodes_with_slices,
    silent_lines,
    usage_cells,
    usage_of_pod,
    usages_document,
    why_senseless,
)
from sluice_console.shell.live.allocator_client import trusted
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.output.formats import OutputFormat, is_for_programs, print_document
from sluice_console.shell.output.printer import console, said, say, show_table

ASKED_MAX = 32
"""Agents that are asked at once."""
ANSWER_WITHIN_S = 3.0
_WHY_MAX = 200


async def usage(url: str, *, idle_s: float | None, form: OutputFormat) -> int:
    """`sluice usage`. Raises BusError, NotAnsweringError."""
    async with connected(url) as bus:
        fleet_state = await read_fleet_state(bus)
    document = await usages_at(fleet_state, idle_s=idle_s)
    if is_for_programs(form):
        print_document(document, form)
        return 0
    _show(document, idle_s)
    say(silent_lines(document))
    return 0


async def usages_at(fleet_state: FleetState, *, idle_s: float | None = None) -> UsagesDocument:
    """What all slices of a fleet are used for, or those that idle. Raises BusError when nobody can be asked."""
    try:
        security = trusted()
    except ServiceError as error:
        raise BusError(str(error)) from error
    found = await ask_agents(nodes_with_slices(fleet_state), security)
    answers = {node: answer for node, answer in found.items() if isinstance(answer, NodeUsage)}
    silent = {node: answer for node, answer in found.items() if isinstance(answer, str)}
    return usages_document(answers, silent, idle_s=idle_s)


async def use_by_request(fleet_state: FleetState) -> tuple[dict[str, str], list[str]]:
    """What the slices of each request are used for, in a few words; and who could not be asked, in a line each."""
    try:
        document = await usages_at(fleet_state)
    except BusError as error:
        return {}, [f"slice usage cannot be read from the agents: {error}"]
    use = {each.request: usage_of_pod(each.request, document.slices) for each in document.slices}
    return use, silent_lines(document)


async def ask_agents(endpoints: Mapping[str, str], security: TransportSecurity) -> dict[str, NodeUsage | str]:
    """What each agent says, or why it says nothing. Some are asked at once, each for at most `ANSWER_WITHIN_S`."""
    slots = asyncio.Semaphore(ASKED_MAX)

    async def ask(node: str, endpoint: str) -> NodeUsage | str:
        async with slots:
            return await _ask(node, endpoint, security)

    answers = await asyncio.gather(*(ask(node, endpoint) for node, endpoint in endpoints.items()))
    return dict(zip(endpoints, answers, strict=True))


async def _ask(node: str, endpoint: str, security: TransportSecurity) -> NodeUsage | str:
    name = node_dns_name(NodeName(node))
    try:
        async with transport.channel(endpoint, security=security, server_name=name) as opened:
            request = agent_pb2.GetUsageRequest(node=node)
            answer = await agent_pb2_grpc.AgentServiceStub(opened).GetUsage(request, timeout=ANSWER_WITHIN_S)
    except transport.PlainTextError as error:
        return str(error)
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return "its agent is of an older version, which does not report it"
        untrusted = transport.why_untrusted(error, security=security, server_name=name)
        return untrusted or f"{error.code().name}: {shorten(error.details() or '', _WHY_MAX)}"
    found = usage_from_proto(answer)
    return found.why if isinstance(found, Undecodable) else why_senseless(node, found) or found


def _show(document: UsagesDocument, idle_s: float | None) -> None:
    out = console()
    if not document.slices:
        out.print("no slice is ready" if idle_s is None else f"no slice has idled for {duration_text(idle_s)}")
        return
    show_table(out, COLUMNS, [tuple(map(said, usage_cells(each))) for each in document.slices])
