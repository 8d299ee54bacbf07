"""Serves the kubelet plugin for ResourceClaims: its sockets in the right order, in the kubelet's directories."""

from collections.abc import AsyncIterator, Callable
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
    pluginregistration_pb2_grpc,
)
from sluice.runtime import logs
from sluice_node_agent.core.hand_over.device_health import DeviceHealth
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.servicers import ClaimServicer, HealthServicer
from sluice_node_agent.kubelet.places import claims_socket, registration_socket
from sluice_node_agent.kubelet.registration import Plugin, Registered, Registration
from sluice_node_agent.kubelet.sockets import plugin_socket

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The newest first: a kubelet takes the first of this list that it knows."""


@asynccontextmanager
async def plugin_served(
    node: NodeName,
    kubelet_root: Path,
    calls: KubeletCalls,
    health: Callable[[], tuple[DeviceHealth, ...]],
    registered: Registered,
) -> AsyncIterator[None]:
    """Serve the kubelet of `kubelet_root` within the `async with`. Raises PluginSocketError."""
    log = logs.get("dra", node=node)
    socket = Path(claims_socket(kubelet_root))
    plugin = Plugin("DRAPlugin", DRIVER, str(socket), VERSIONS)
    registration = Registration(plugin, "no pod with a ResourceClaim of ours starts here", log, registered)

    def register(server: grpc.aio.Server) -> None:
        claims: Any = ClaimServicer(node, calls, dra_pb2)
        older_claims: Any = ClaimServicer(node, calls, dra_v1beta1_pb2)
        watched: Any = HealthServicer(node, health, dra_health_pb2)
        older_watched: Any = HealthServicer(node, health, dra_health_v1alpha1_pb2)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(claims, server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(older_claims, server)
        dra_health_pb2_grpc.add_DRAResourceHealthServicer_to_server(watched, server)
        dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(older_watched, server)

    def register_registration(server: grpc.aio.Server) -> None:
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registration, server)

    # A kubelet that finds the registration calls the plugin at once: it starts first, and ends last.
    async with (
        plugin_socket(socket, register),
        plugin_socket(Path(registration_socket(kubelet_root, DRIVER)), register_registration),
    ):
        log.info("serving ResourceClaims", driver=DRIVER, kubelet_root=kubelet_root)
        yield
