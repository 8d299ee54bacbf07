"""
The agent's Unix socket for operators on the node, which only its owner can open: `NodeControlService` and the
inventory's `AgentService`. A killed agent's socket is replaced: the holder of the journal's lock is the only agent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import SliceReport
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime import logs
from sluice.runtime.grpc import transport
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import QuarantineReleased
from sluice_node_agent.shell.paths import SOCKET_PATH_BYTES_MAX, fits_a_socket
from sluice_node_agent.shell.runner.agent_servicer import AgentServicer

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
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this agent is of node {self._node}, not of {node!r}")
        if not self._agent.started:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{node}: devices and journal are being read")
        found = self._slice(allocation)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"node {node} has no slice {allocation!r}")
        assert found is not None
        if found.state != "quarantined":
            message = f"slice {allocation} is not quarantined but {found.state}; there is nothing to release"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
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
        _make_private(path)
        try:
            yield
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _make_private(path: Path) -> None:
    """Restrict it to its owner. Until here it was unreachable too: its directory is the journal's."""
    path.chmod(0o600)
