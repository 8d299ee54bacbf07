"""
The kubelet plugin's services, each for two versions of the kubelet's API.

Every claim of a call has its own answer; one that fails does not fail the others.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from sluice.contracts.ids import NodeName
from sluice.runtime import logs
from sluice_node_agent.core.hand_over.device_health import DeviceHealth
from sluice_node_agent.core.instructions import AnswerCall
from sluice_node_agent.dra.calls import KubeletCalls

_LOOK_S = 1.0
"""How often health is compared with what the kubelet knows."""
REPEAT_S = 10.0
"""How often all of it is sent again: a kubelet takes a device as unknown after 30 s without (healthinfo.go)."""
_MESSAGE_MAX = 1024
"""Characters; a kubelet cuts longer ones."""


class ClaimServicer:
    """`DRAPlugin`. `messages` is the module of one version's messages."""

    def __init__(self, node: NodeName, calls: KubeletCalls, messages: Any) -> None:
        """Devices are of the pool of this node."""
        self._node = node
        self._calls = calls
        self._messages = messages
        self._log = logs.get("dra", node=node)

    async def NodePrepareResources(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: ARG002, N802
        """Have the devices of these claims handed over."""
        names = {claim.uid: f"{claim.namespace}/{claim.name}" for claim in request.claims}
        answers = await asyncio.gather(*(self._calls.prepare(uid, name) for uid, name in names.items()))
        response = self._messages.NodePrepareResourcesResponse()
        for (uid, name), answer in zip(names.items(), answers, strict=True):
            self._fill(response.claims[uid], answer)
            if answer.error:
                self._log.warning("a claim was not prepared", claim=uid, name=name, why=answer.error)
            else:
                self._log.info("a claim is prepared", claim=uid, name=name, devices=len(answer.devices))
        return response

    async def NodeUnprepareResources(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: ARG002, N802
        """The containers of all pods with these claims have ended."""
        names = {claim.uid: f"{claim.namespace}/{claim.name}" for claim in request.claims}
        answers = await asyncio.gather(*(self._calls.unprepare(uid, name) for uid, name in names.items()))
        response = self._messages.NodeUnprepareResourcesResponse()
        for (uid, name), answer in zip(names.items(), answers, strict=True):
            response.claims[uid].error = answer.error
            self._log.info("the use of a claim has ended", claim=uid, name=name, why=answer.error)
        return response

    def _fill(self, told: Any, answer: AnswerCall) -> None:
        told.error = answer.error
        for device in answer.devices:
            told.devices.add(
                request_names=[device.request],
                pool_name=self._node,
                device_name=device.name,
                cdi_device_ids=[device.cdi],
            )


class HealthServicer:
    """`DRAResourceHealth`. `messages` is the module of one version's messages."""

    def __init__(self, node: NodeName, health: Callable[[], tuple[DeviceHealth, ...]], messages: Any) -> None:
        """`health` returns the health of all devices that claims have now."""
        self._node = node
        self._health = health
        self._messages = messages
        self._states = {"healthy": messages.HEALTHY, "unhealthy": messages.UNHEALTHY, "unknown": messages.UNKNOWN}

    async def NodeWatchResources(  # noqa: N802
        self,
        request: Any,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> AsyncIterator[Any]:
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
