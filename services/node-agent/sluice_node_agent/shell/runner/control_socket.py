"""The gRPC services of an agent: `AgentService` answers the inventory's pulls, and `NodeControlService` serves
operators on the node, on a Unix socket that only its owner can open. A killed agent's socket is replaced: the holder of
the journal's lock is the only agent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import NodeSnapshot, SliceReport
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc, node_pb2
from sluice.contracts.proto.snapshots import snapshot_to_proto, usage_to_proto
from sluice.runtime import logs
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import abort
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import QuarantineReleased
from sluice_node_agent.device.mps.home_directory import SOCKET_PATH_BYTES_MAX
from sluice_node_agent.shell.paths import fits_a_socket
from sluice_node_agent.shell.runner.usage_poller import UsagePoller


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Serves the snapshots of all nodes of this process."""

    def __init__(self) -> None:
        self.agents: dict[NodeName, Agent | None] = {}
        """None while the node's journal and devices are read."""
        self.usage: dict[NodeName, UsagePoller] = {}
        self._answers: dict[NodeName, tuple[NodeSnapshot, node_pb2.NodeSnapshot]] = {}
        """The last answer for each node, and the snapshot that it was made of."""

    def register(self, server: grpc.aio.Server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)

    async def GetInventory(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.GetInventoryRequest, context: grpc.aio.ServicerContext
    ) -> node_pb2.NodeSnapshot:
        agent = await self._agent(request.node, context)
        if agent is None or not agent.started:
            await _not_yet(request.node, context)
        snapshot = agent.snapshot()
        if (request.known_run, request.known_generation) == (snapshot.agent_run, snapshot.generation):
            return node_pb2.NodeSnapshot(
                node=snapshot.node,
                boot_id=snapshot.boot_id,
                agent_run=snapshot.agent_run,
                generation=snapshot.generation,
                unchanged=True,
            )
        known = self._answers.get(snapshot.node)
        if known is None or known[0] is not snapshot:
            known = self._answers[snapshot.node] = snapshot, snapshot_to_proto(snapshot)
        return known[1]

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
            ready=agent.is_open and any(gpu.healthy for gpu in snapshot.gpus),
            message="; ".join(_what_is_wrong(snapshot, is_open=agent.is_open)),
        )

    async def GetUsage(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> agent_pb2.NodeUsage:
        agent = await self._agent(request.node, context)
        watch = self.usage.get(NodeName(request.node))
        if agent is None or not agent.started or watch is None:
            await _not_yet(request.node, context)
        return usage_to_proto(watch.told())

    async def _agent(self, node: str, context: grpc.aio.ServicerContext) -> Agent | None:
        if NodeName(node) not in self.agents:
            served = ", ".join(sorted(self.agents)[:5])
            await abort(context, grpc.StatusCode.NOT_FOUND, f"this process does not serve {node[:100]!r} but {served}")
        return self.agents[NodeName(node)]


async def _not_yet(node: str, context: grpc.aio.ServicerContext) -> NoReturn:
    await abort(context, grpc.StatusCode.UNAVAILABLE, f"{node}: devices and journal are being read")


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


_LOOK_S = 0.05
_LOOKS = 60
"""How often to check for a release's outcome: within 3 s."""


class ControlServicer(agent_pb2_grpc.NodeControlServiceServicer):
    """Passes an operator's requests to the core of one node."""

    def __init__(self, node: NodeName, agent: Agent, offer: Callable[[QuarantineReleased], Awaitable[None]]) -> None:
        self._node = node
        self._agent = agent
        self._offer = offer

    async def ReleaseQuarantine(  # noqa: N802 - the method's name in the contract
        self, request: agent_pb2.ReleaseQuarantineRequest, context: grpc.aio.ServicerContext
    ) -> agent_pb2.ReleaseQuarantineResponse:
        """Have a quarantined slice retried at once, and return the outcome."""
        node, allocation = request.node[:300], AllocationId(request.allocation[:300])
        if node != self._node:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"this agent is of node {self._node}, not of {node!r}")
        if not self._agent.started:
            await _not_yet(node, context)
        found = self._slice(allocation)
        if found is None:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"node {node} has no slice {allocation!r}")
        if found.state != "quarantined":
            message = f"slice {allocation} is not quarantined but {found.state}; there is nothing to release"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, message)
        await self._offer(QuarantineReleased(allocation, ignore_holders=request.ignore_holders))
        return agent_pb2.ReleaseQuarantineResponse(message=await self._outcome(allocation))

    async def _outcome(self, allocation: AllocationId) -> str:
        found = self._slice(allocation)
        for _ in range(_LOOKS):
            if found is None:
                break
            await asyncio.sleep(_LOOK_S)
            found = self._slice(allocation)
        if found is None:
            return f"slice {allocation} is gone, and its place is free"
        return f"slice {allocation} is being retried, and stays quarantined until nothing holds it"

    def _slice(self, allocation: AllocationId) -> SliceReport | None:
        slices = self._agent.snapshot().slices
        return next((report for report in slices if report.booking.allocation == allocation), None)


@asynccontextmanager
async def served_on(
    path: Path, control: ControlServicer, pulled: AgentServicer, *, node: NodeName
) -> AsyncIterator[None]:
    """Serve on a Unix socket within the `async with`. None if its path is too long."""
    log = logs.get("control", node=node)
    if not fits_a_socket(path):
        log.warning(
            "no control socket: its path is too long; show and release-quarantine will not reach this agent",
            path=str(path),
            bytes_max=SOCKET_PATH_BYTES_MAX,
        )
        yield
        return

    def register(server: grpc.aio.Server) -> None:
        agent_pb2_grpc.add_NodeControlServiceServicer_to_server(control, server)
        pulled.register(server)

    _remove(path)
    async with transport.serve(register, address=f"unix:{path}"):
        _make_private(path)  # until here it was unreachable too: its directory is the journal's
        try:
            yield
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _make_private(path: Path) -> None:
    path.chmod(0o600)
