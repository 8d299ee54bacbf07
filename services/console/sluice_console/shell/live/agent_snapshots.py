"""Reads device snapshots directly from node agents, to verify what the bus says."""

import asyncio
from collections.abc import Mapping

import grpc.aio

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AgentAddress, NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.snapshots import snapshot_from_proto
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TransportSecurity
from sluice_console.shell.live.allocator_client import trusted


async def snapshots(addresses: Mapping[str, AgentAddress]) -> list[NodeSnapshot]:
    """The present snapshot of each node from its agent. Raises BusError if one does not answer."""
    try:
        security = trusted()
    except ServiceError as error:
        raise BusError(str(error)) from error
    return list(await asyncio.gather(*(_snapshot(node, where, security) for node, where in addresses.items())))


async def _snapshot(node: str, address: AgentAddress, security: TransportSecurity) -> NodeSnapshot:
    endpoint, name = address.endpoint, node_dns_name(NodeName(node))
    security = security.trusting(address.certificate)
    try:
        async with transport.channel(endpoint, security=security, server_name=name) as opened:
            request = agent_pb2.GetInventoryRequest(node=node)
            answer = await agent_pb2_grpc.AgentServiceStub(opened).GetInventory(request)
    except transport.PlainTextError as error:
        raise BusError(f"the agent of {node} cannot be asked: {error}") from error
    except grpc.aio.AioRpcError as error:
        why = transport.why_untrusted(error, security=security, server_name=name) or error
        raise BusError(f"the agent of {node} at {endpoint} does not answer: {why}") from error
    snapshot = snapshot_from_proto(answer)
    if isinstance(snapshot, Undecodable):
        raise BusError(f"the agent of {node} at {endpoint} cannot be understood: {snapshot.why}")
    return snapshot
