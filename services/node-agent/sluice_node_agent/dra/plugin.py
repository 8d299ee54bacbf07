"""Serves the kubelet plugin for ResourceClaims: its sockets in the right order, in the kubelet's directories."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.ids import NodeName
from sluice.contracts.pb import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
    dra_pb2,
    dra_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
)
from sluice.runtime import logs
from sluice_node_agent.core.hand_over.controller import DeviceHealth
from sluice_node_agent.core.instructions import AnswerCall
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.kubelet import sockets

_LOOK_S = 1.0
"""How often health is compared with what the kubelet knows."""
REPEAT_S = 10.0
"""How often all of it is sent again: a kubelet takes a device as unknown after 30 s without (healthinfo.go)."""
_MESSAGE_MAX = 1024
"""Characters; a kubelet cuts longer ones."""


class ClaimServicer:
    """`DRAPlugin`. `messages` is the module of one version's messages."""

    def __init__(self, node: NodeName, calls: KubeletCalls, messages: Any) -> None:
        self._node = node
        self._calls = calls
        self._messages = messages
        self._log = logs.get("dra", node=node)

    async def NodePrepareResources(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: ARG002, N802
        response = self._messages.NodePrepareResourcesResponse()
        for uid, name, answer in await _answers(request, self._calls.prepare):
            self._fill(response.claims[uid], answer)
            if answer.error:
                self._log.warning("a claim was not prepared", claim=uid, name=name, why=answer.error)
            else:
                self._log.info("a claim is prepared", claim=uid, name=name, devices=len(answer.devices))
        return response

    async def NodeUnprepareResources(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: ARG002, N802
        """The containers of all pods with these claims have ended."""
        response = self._messages.NodeUnprepareResourcesResponse()
        for uid, name, answer in await _answers(request, self._calls.unprepare):
            response.claims[uid].error = answer.error
            self._log.info("the use of a claim has ended", claim=uid, name=name, why=answer.error)
        return response

    def _fill(self, told: Any, answer: AnswerCall) -> None:
        told.error = answer.error
        for device in answer.devices:
            names = {"request_names": [device.request], "cdi_device_ids": [device.cdi]}
            told.devices.add(pool_name=self._node, device_name=device.name, **names)


async def _answers(request: Any, ask: Callable[[str, str], Awaitable[AnswerCall]]) -> list[tuple[str, str, AnswerCall]]:
    names = {claim.uid: f"{claim.namespace}/{claim.name}" for claim in request.claims}
    answers = await asyncio.gather(*(ask(uid, name) for uid, name in names.items()))
    return [(uid, name, answer) for (uid, name), answer in zip(names.items(), answers, strict=True)]


class HealthServicer:
    """`DRAResourceHealth`. `messages` is the module of one version's messages."""

    def __init__(self, node: NodeName, health: Callable[[], tuple[DeviceHealth, ...]], messages: Any) -> None:
        self._node = node
        self._health = health
        self._messages = messages
        self._states = {"healthy": messages.HEALTHY, "unhealthy": messages.UNHEALTHY, "unknown": messages.UNKNOWN}

    async def NodeWatchResources(self, *_: object) -> AsyncIterator[Any]:  # noqa: N802
        """All devices, at every change and at an interval."""
        clock = asyncio.get_running_loop().time
        told: tuple[DeviceHealth, ...] | None = None
        again_at = 0.0
        while True:
            found = self._health()
            if found != told or clock() >= again_at:
                told, again_at = found, clock() + REPEAT_S
                yield self._response(found)
            await asyncio.sleep(_LOOK_S)

    def _response(self, found: tuple[DeviceHealth, ...]) -> Any:
        response = self._messages.NodeWatchResourcesResponse()
        now = int(time.time())
        for each in found:
            response.devices.add(
                device={"pool_name": self._node, "device_name": each.name},
                health=self._states[each.health],
                last_updated_time=now,
                message=each.message[:_MESSAGE_MAX],
            )
        return response


VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The newest first: a kubelet takes the first of this list that it knows."""


@asynccontextmanager
async def plugin_served(
    node: NodeName,
    kubelet_root: Path,
    calls: KubeletCalls,
    health: Callable[[], tuple[DeviceHealth, ...]],
    registered: sockets.Registered,
) -> AsyncIterator[None]:
    """Serve the kubelet of `kubelet_root` within the `async with`. Raises ServiceError."""
    log = logs.get("dra", node=node)
    socket = str(sockets.claims_socket(kubelet_root))
    plugin = sockets.Plugin("DRAPlugin", DRIVER, socket, VERSIONS)
    registration = sockets.Registration(plugin, "no pod with a ResourceClaim of ours starts here", log, registered)

    def register(server: grpc.aio.Server) -> None:
        claims: Any = ClaimServicer(node, calls, dra_pb2)
        older_claims: Any = ClaimServicer(node, calls, dra_v1beta1_pb2)
        watched: Any = HealthServicer(node, health, dra_health_pb2)
        older_watched: Any = HealthServicer(node, health, dra_health_v1alpha1_pb2)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(claims, server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(older_claims, server)
        dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(watched, server)
        dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(older_watched, server)

    async with sockets.plugin_registered(kubelet_root, registration, register):
        log.info("serving ResourceClaims", driver=DRIVER, kubelet_root=kubelet_root)
        yield
