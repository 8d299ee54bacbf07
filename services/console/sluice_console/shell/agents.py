"""Asks node agents directly what is on their devices, past every stream: the proof that the bus told the truth."""

import asyncio
from collections.abc import Mapping

import grpc.aio

from sluice.contracts.callers import name_of_node
from sluice.contracts.codec import Undecodable
from sluice.contracts.convert import snapshot_from_proto
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime import rpc
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.rpc_identity import Trust
from sluice_console.shell.allocator import trusted


async def snapshots(endpoints: Mapping[str, str]) -> list[NodeSnapshot]:
    """The present snapshot of each node, asked at its agent's endpoint. Raises BusError when one does not answer."""
    try:
        trust = trusted()
    except ServiceError as error:
        raise BusError(str(error)) from error
    return list(await asyncio.gather(*(_snapshot(node, where, trust) for node, where in endpoints.items())))


async def _snapshot(node: str, endpoint: str, trust: Trust) -> NodeSnapshot:
    name = name_of_node(NodeName(node))
    try:
        async with rpc.channel(endpoint, trust=trust, server_name=name) as opened:
            request = agent_pb2.GetInventoryRequest(node=node)
            answer = await agent_pb2_grpc.AgentServiceStub(opened).GetInventory(request)
    except rpc.PlainTextError as error:
        raise BusError(f"the agent of {node} cannot be asked: {error}") from error
    except grpc.aio.AioRpcError as error:
        why = rpc.why_untrusted(error, trust=trust, server_name=name) or error
        raise BusError(f"the agent of {node} at {endpoint} does not answer: {why}") from error
    snapshot = snapshot_from_proto(answer)
    if isinstance(snapshot, Undecodable):
        raise BusError(f"the agent of {node} at {endpoint} cannot be understood: {snapshot.why}")
    return snapshot
