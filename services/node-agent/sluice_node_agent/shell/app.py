"""Runs the agents of one process, each with its own bus connection, journal and devices; one gRPC server for all."""

import asyncio
import resource
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc.aio

from sluice.contracts.bus.nats_permissions import user_name
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import AgentAddress
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.runtime import logs
from sluice.runtime.bus import Bus
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.grpc.security import security_from_settings
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.service import Service
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.nodes.node_backend import NodeBackend
from sluice_node_agent.shell.runner.agent_runner import AgentRunner, Connect, ProcessContext
from sluice_node_agent.shell.runner.control_socket import AgentServicer
from sluice_node_agent.shell.runner.executors import ThreadPools
from sluice_node_agent.shell.runner.pod_volumes import volumes_served

THREADS_MAX = 64
"""Threads for blocking calls: one per GPU of this process, up to this."""


async def serve(service: Service[NodeAgentSettings]) -> None:
    """Run the agents over NATS until cancelled."""
    raise_file_limit()

    @asynccontextmanager
    async def connect(node: NodeName) -> AsyncIterator[Bus]:
        who = credentials_from_settings(
            service.settings, service.settings.nats_user or user_name(Role.NODE_AGENT, node)
        )
        async with await NatsBus.connect(
            service.settings.nats_url, name=f"node-agent {node}", traces=service.traces, credentials=who, quiet=True
        ) as bus:
            yield bus

    health = Health(service.clock)
    async with transport.serve_health(service.settings.health_address, health):
        await run_agents(service, connect, health)


async def run_agents(service: Service[NodeAgentSettings], connect: Connect, health: Health) -> None:
    """Run the agents of the nodes in the settings, and their CSI driver, until cancelled. Raises ServiceError."""
    async with volumes_served(service.settings, health):
        if service.settings.role == "csi":
            await asyncio.get_running_loop().create_future()  # until cancelled
        await _run_agents(service, connect, health)


async def _run_agents(service: Service[NodeAgentSettings], connect: Connect, health: Health) -> None:
    from sluice.runtime.grpc.self_made_identity import SelfMadeIdentity  # noqa: PLC0415 - not in the volume driver

    sites = backends_of(service.settings)
    health.expect(site.name for site in sites)
    security = security_from_settings(
        service.settings, *(node_dns_name(site.name) for site in sites), make=SelfMadeIdentity
    )
    pulled = AgentServicer()
    pulled.agents.update({site.name: None for site in sites})
    gpus = sum(site.gpus_max for site in sites)
    threads = ThreadPoolExecutor(max_workers=max(1, min(gpus, THREADS_MAX)), thread_name_prefix="gpu")
    helpers = ThreadPools.for_nodes(len(sites))

    def register(server: grpc.aio.Server) -> None:
        pulled.register(server)
        health.register(server)

    try:
        async with (
            transport.serve(
                register, address=service.settings.grpc_address, security=security, traces=service.traces
            ) as endpoint,
            asyncio.TaskGroup() as agents,
        ):
            own = security.identity.certificate if isinstance(security.identity, SelfMadeIdentity) else ""
            shared = ProcessContext(service, AgentAddress(endpoint, own), pulled, threads, helpers, connect, health)
            for number, site in enumerate(sites):
                agents.create_task(AgentRunner(site, f"{service.run}-{number}", shared).run())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        helpers.shut_down()


def backends_of(settings: NodeAgentSettings) -> Sequence[NodeBackend]:
    if settings.fleet_file is not None:
        from sluice_node_agent.shell.nodes import simulated_node as fleet  # noqa: PLC0415 - not on real nodes

        return [fleet.simulated_node(node, settings) for node in fleet.fleet_nodes(settings, settings.fleet_file)]
    from sluice_node_agent.shell.nodes.real_node import real_node  # noqa: PLC0415 - not on simulated nodes

    return (real_node(settings),)


FILES_MAX = 1_048_576
"""A kernel's default maximum (fs.nr_open). MPS daemons inherit the limit, and may close all files one by one."""


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one. A failure is logged, and the limit stays."""
    log = logs.get("app")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        log.info("open files", limit=soft)
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files cannot be raised", limit=soft, wanted=wanted, why=str(error))
        return
    log.info("open files", limit=wanted, before=soft)
