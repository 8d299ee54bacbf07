"""
Client of the agent on this node, over its control socket, which only its owner may open. One that refuses connections
was left by a killed agent.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.snapshots import snapshot_from_proto
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice_node_agent.shell.paths import SOCKET_PATH_BYTES_MAX, fits_a_socket

CONNECT_S = 2.0
ANSWER_S = 10.0
"""A release waits for the agent's next step, which may read a slow GPU first."""

T = TypeVar("T")


class NoAgentError(ServiceError):
    """No agent answers on this node."""


class RefusedError(ServiceError):
    """The agent refused the request."""


def ask_snapshot(path: Path, node: str) -> NodeSnapshot:
    """The agent's snapshot of the node. Raises NoAgentError and RefusedError."""

    async def ask(channel: grpc.aio.Channel) -> object:
        return await agent_pb2_grpc.AgentServiceStub(channel).GetInventory(agent_pb2.GetInventoryRequest(node=node))

    snapshot = snapshot_from_proto(_asked(path, node, ask))  # type: ignore[arg-type]  # grpc has no types
    if isinstance(snapshot, Undecodable):
        raise RefusedError(f"the answer of the agent of {node} is not understood: {snapshot.why}")
    return snapshot


def release_quarantine(path: Path, node: str, allocation: str, *, ignore_holders: bool) -> str:
    """Have a quarantined slice retried at once; returns the outcome. Raises NoAgentError and RefusedError."""

    async def ask(channel: grpc.aio.Channel) -> str:
        request = agent_pb2.ReleaseQuarantineRequest(node=node, allocation=allocation, ignore_holders=ignore_holders)
        answer = await agent_pb2_grpc.NodeControlServiceStub(channel).ReleaseQuarantine(request)
        return str(answer.message)

    return _asked(path, node, ask)


def _asked(path: Path, node: str, ask: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
    _see_that_somebody_listens(path, node)
    address = f"unix:{path.absolute()}"

    async def call() -> T:
        async with transport.channel(address, deadline_s=ANSWER_S) as channel:
            return await ask(channel)

    try:
        return asyncio.run(call())
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RefusedError(f"the agent of {node} did not answer within {ANSWER_S:g} s") from error
        raise RefusedError(error.details() or f"the agent of {node} answered {error.code().name}") from error


def _see_that_somebody_listens(path: Path, node: str) -> None:
    if not fits_a_socket(path.absolute()):
        raise NoAgentError(
            f"the agent of {node} cannot be asked: the path of its control socket, {path}, is longer than "
            f"{SOCKET_PATH_BYTES_MAX} bytes"
        )
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(CONNECT_S)
        probe.connect(os.fspath(path))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise NoAgentError(f"no agent of node {node} runs here: no process answers at {path}") from error
    except PermissionError as error:
        raise RefusedError(f"only the user that the agent runs as may open {path}") from error
    except OSError as error:
        raise NoAgentError(f"the agent of node {node} does not answer at {path}: {error}") from error
    finally:
        probe.close()
