"""Asks agents for the usage of their slices."""

import asyncio
from collections.abc import Mapping
from math import inf

import grpc.aio

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AgentAddress
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.snapshots import usage_from_proto
from sluice.contracts.reasons import shorten
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TransportSecurity

ASKED_MAX = 32
ANSWER_WITHIN_S = 3.0
_WHY_MAX = 200


async def ask_agents(addresses: Mapping[str, AgentAddress], security: TransportSecurity) -> dict[str, NodeUsage | str]:
    slots = asyncio.Semaphore(ASKED_MAX)

    async def ask(node: str, address: AgentAddress) -> NodeUsage | str:
        async with slots:
            return await _ask(node, address.endpoint, security.trusting(address.certificate))

    answers = await asyncio.gather(*(ask(node, address) for node, address in addresses.items()))
    return dict(zip(addresses, answers, strict=True))


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
    return found.why if isinstance(found, Undecodable) else why_implausible(node, found) or found


def why_implausible(node: str, usage: NodeUsage) -> str:
    """Why an answer cannot come from the agent of `node`; empty if it can. The agent may be compromised."""
    if usage.node != node:
        return f"its agent reports another node, {shorten(usage.node)!r}"
    for each in usage.slices:
        told = (
            each.busy_percent, each.sm_percent, each.memory_busy_percent, each.watched_s, each.age_s, each.idle_s,
        )  # fmt: skip
        if not all(0 <= number < inf for number in told if number is not None):
            return f"its agent tells numbers of {shorten(each.allocation)!r} that make no sense"
    return ""
