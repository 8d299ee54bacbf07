"""The gRPC server of this process's agents: answers the inventory's pulls. Read-only."""

import grpc
import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc, node_pb2
from sluice.contracts.proto.slice_usage import usage_to_proto
from sluice.contracts.proto.snapshots import snapshot_to_proto
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.shell.runner.usage_poller import UsagePoller


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Serves the snapshots of all nodes of this process."""

    def __init__(self) -> None:
        self.agents: dict[NodeName, Agent | None] = {}
        """None while the node's journal and devices are read."""
        self.usage: dict[NodeName, UsagePoller] = {}

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)

    async def GetInventory(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.GetInventoryRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.NodeSnapshot:
        """The snapshot of a node."""
        agent = await self._agent(request.node, context)
        if agent is None or not agent.started:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{request.node}: devices and journal are being read")
        assert agent is not None
        return snapshot_to_proto(agent.snapshot())

    async def GetHealth(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.GetHealthRequest, context: grpc.aio.ServicerContext
    ) -> agent_pb2.GetHealthResponse:
        """Whether the agent of a node carries out orders on at least one GPU, and its problems."""
        agent = await self._agent(request.node, context)
        if agent is None or not agent.started:
            return agent_pb2.GetHealthResponse(node=request.node, message="devices and journal are being read")
        snapshot = agent.snapshot()
        return agent_pb2.GetHealthResponse(
            node=snapshot.node,
            boot_id=snapshot.boot_id,
            agent_run=snapshot.agent_run,
            generation=snapshot.generation,
            ready=agent.is_open and _has_usable_gpu(snapshot),
            message="; ".join(_what_is_wrong(snapshot, is_open=agent.is_open)),
        )

    async def GetUsage(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> agent_pb2.NodeUsage:
        """The use of a node's slices at the last sample."""
        agent = await self._agent(request.node, context)
        watch = self.usage.get(NodeName(request.node))
        if agent is None or not agent.started or watch is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{request.node}: devices and journal are being read")
        assert watch is not None
        return usage_to_proto(watch.told())

    async def _agent(self, node: str, context: grpc.aio.ServicerContext) -> Agent | None:
        if NodeName(node) not in self.agents:
            served = ", ".join(sorted(self.agents)[:5])
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this process does not serve {node[:100]!r} but {served}")
        return self.agents[NodeName(node)]


def _has_usable_gpu(snapshot: NodeSnapshot) -> bool:
    return any(gpu.healthy for gpu in snapshot.gpus)


def _what_is_wrong(snapshot: NodeSnapshot, *, is_open: bool) -> list[str]:
    wrong = [] if is_open else ["the allocator has not opened this node for this run of the agent yet"]
    if not snapshot.gpus:
        wrong.append("the node has no GPU")
    for gpu in snapshot.gpus:
        if gpu.lost:
            wrong.append(f"GPU {gpu.index} ({gpu.uuid}) is lost: {gpu.health_message}")
        elif not gpu.healthy:
            wrong.append(f"GPU {gpu.index} ({gpu.uuid}) is not healthy: {gpu.health_message}")
    quarantined = [report.booking.allocation for report in snapshot.slices if report.state == "quarantined"]
    if quarantined:
        wrong.append(f"quarantined: {', '.join(quarantined)}")
    return [*wrong, *snapshot.warnings]
