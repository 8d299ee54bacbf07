"""Asks node agents directly what is on their devices, past every stream: the proof that the bus told the truth."""

import asyncio
from collections.abc import Mapping

import grpc

from sluice.contracts.codec import Undecodable
from sluice.contracts.convert import snapshot_from_proto
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime.bus import BusError
from sluice.runtime.rpc import channel


async def snapshots(endpoints: Mapping[str, str]) -> list[NodeSnapshot]:
    """The present snapshot of each node, asked at its agent's endpoint. Raises BusError when one does not answer."""
    return list(await asyncio.gather(*(_snapshot(node, endpoint) for node, endpoint in endpoints.items())))


async def _snapshot(node: str, endpoint: str) -> NodeSnapshot:
    async with channel(endpoint) as opened:
        try:
            request = agent_pb2.GetInventoryRequest(node=node)
            answer = await agent_pb2_grpc.AgentServiceStub(opened).GetInventory(request)
        except grpc.RpcError as error:
            raise BusError(f"the agent of {node} at {endpoint} does not answer: {error}") from error
    snapshot = snapshot_from_proto(answer)
    if isinstance(snapshot, Undecodable):
        raise BusError(f"the agent of {node} at {endpoint} cannot be understood: {snapshot.why}")
    return snapshot
