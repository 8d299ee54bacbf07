"""Registers a plugin with the kubelet, which finds its socket and calls it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from sluice.contracts.pb import pluginregistration_pb2, pluginregistration_pb2_grpc

Registered = Callable[[str], Awaitable[None]]
"""Gets the reason of a rejection; empty: the plugin is registered."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a kubelet learns of a plugin. `endpoint` is a bare path."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class Registration(pluginregistration_pb2_grpc.RegistrationServicer):
    """Registers one plugin."""

    def __init__(self, plugin: Plugin, without: str, log: Any, registered: Registered | None = None) -> None:
        """`without`: what does not work while the kubelet rejects the plugin, for the log."""
        self._plugin = plugin
        self._without = without
        self._log = log
        self._registered = registered

    async def GetInfo(  # noqa: N802 - the method's name in the contract
        self,
        request: pluginregistration_pb2.InfoRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pluginregistration_pb2.PluginInfo:
        """The plugin's name and its socket."""
        plugin = self._plugin
        return pluginregistration_pb2.PluginInfo(
            type=plugin.type, name=plugin.name, endpoint=plugin.endpoint, supported_versions=plugin.versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: pluginregistration_pb2.RegistrationStatus,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """The kubelet's result. No other message reports a rejection."""
        plugin = self._plugin
        if request.plugin_registered:
            self._log.info("the kubelet has registered the driver", driver=plugin.name)
        else:
            self._log.error(f"the kubelet rejected the driver: {self._without}", driver=plugin.name, why=request.error)
        if self._registered is not None:
            why = "" if request.plugin_registered else request.error or "it gave no reason"
            await self._registered(why)
        return pluginregistration_pb2.RegistrationStatusResponse()
