"""A kubelet as a plugin for ResourceClaims meets it: finds the socket, registers, and calls as v1.34 and v1.37 do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from sluice.contracts.pb import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
    dra_pb2,
    dra_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from sluice.runtime.grpc import transport

_CLAIMS: dict[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (dra_pb2, dra_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
_HEALTH: dict[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (dra_health_pb2, dra_health_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc),
}
CALL_S = 45.0
"""As a kubelet's."""


class ClaimKubelet:
    """A kubelet that knows some versions. `knows` are those of the plugin's list that it takes, the first first."""

    def __init__(self, root: Path, *knows: str) -> None:
        self.root = root
        self.knows = knows or (*_CLAIMS, *_HEALTH)
        self.info: Any = None
        for name in ("plugins_registry", "plugins"):
            (root / name).mkdir(parents=True, exist_ok=True)

    @property
    def version(self) -> str:
        """The service it calls: the first of the plugin's list that it knows."""
        return next(each for each in self.info.supported_versions if each in self.knows and each in _CLAIMS)

    async def register(self, *, error: str = "", within_s: float = 90.0) -> Any:
        """Find a registration socket that answers (a killed plugin leaves one), and do what a kubelet does with it."""
        async with asyncio.timeout(within_s):
            while not await self._try_to_register(error):  # noqa: ASYNC110 - a socket tells
                await asyncio.sleep(0.05)
        return self.info

    async def _try_to_register(self, error: str) -> bool:
        for found in sorted((self.root / "plugins_registry").glob("[!.]*.sock")):
            async with transport.channel(f"unix:{found}", deadline_s=10) as channel:
                stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
                status = pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    self.info = await stub.GetInfo(pluginregistration_pb2.InfoRequest())
                    await stub.NotifyRegistrationStatus(status)
                    return True
        return False

    async def prepare(self, *uids: str) -> Any:
        """As before the sandbox of a pod is made: the claims' answers, by UID."""
        return await self._call("NodePrepareResources", uids)

    async def unprepare(self, *uids: str) -> Any:
        """As after all containers of a pod have stopped."""
        return await self._call("NodeUnprepareResources", uids)

    async def _call(self, name: str, uids: tuple[str, ...]) -> Any:
        messages, services = _CLAIMS[self.version]
        claims = [messages.Claim(namespace="default", uid=uid, name=f"of-{uid[:8]}") for uid in uids]
        async with transport.channel(f"unix:{self.info.endpoint}", deadline_s=CALL_S) as channel:
            call = getattr(services.DRAPluginStub(channel), name)
            return (await call(getattr(messages, f"{name}Request")(claims=claims))).claims

    @asynccontextmanager
    async def health(self) -> AsyncIterator[AsyncIterator[Any]]:
        name = next(each for each in self.info.supported_versions if each in self.knows and each in _HEALTH)
        messages, services = _HEALTH[name]
        async with transport.channel(f"unix:{self.info.endpoint}") as channel:
            stream = services.DRAResourceHealthStub(channel).NodeWatchResources(messages.NodeWatchResourcesRequest())
            try:
                yield stream
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    stream.cancel()
