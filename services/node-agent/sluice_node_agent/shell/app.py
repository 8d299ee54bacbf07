"""
The agents of one process, each with its own bus connection, journal and devices; one gRPC server for all of them.

It puts together and supervises; what to do is the core's. An agent whose simulated node reboots begins anew, with
another run; any other failure ends the process, for its supervisor to start it again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.fleet import Fleet, FleetError, FleetNode, parse_fleet
from sluice.contracts.ids import NodeName, RunId
from sluice.runtime import logs, rpc
from sluice.runtime.bus import Bus
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.errors import ServiceError
from sluice.runtime.nats_bus import NatsBus
from sluice.runtime.service import Service
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import AgentStarted, Event
from sluice_node_agent.device.hardware_file import HardwareFile
from sluice_node_agent.device.port import GpuBackend, RebootedError
from sluice_node_agent.device.simulated import SimulatedGpus
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.hands import Hands
from sluice_node_agent.shell.journal import Journal
from sluice_node_agent.shell.pulled import Pulled
from sluice_node_agent.shell.tickets import Tickets

THREADS_MAX = 64
"""Threads for blocking calls: one per GPU of this process, up to this."""

Connect = Callable[[NodeName], AbstractAsyncContextManager[Bus]]


class FleetFileError(ServiceError):
    """The fleet file is missing, wrong, or does not name a node that this process shall serve."""


async def serve(service: Service[NodeAgentSettings]) -> None:
    """Run the agents over NATS until cancelled."""

    @asynccontextmanager
    async def connect(node: NodeName) -> AsyncIterator[Bus]:
        bus = await NatsBus.connect(service.settings.nats_url, name=f"node-agent {node}", traces=service.traces)
        try:
            yield bus
        finally:
            await bus.close()

    await run_agents(service, connect)


async def run_agents(service: Service[NodeAgentSettings], connect: Connect) -> None:
    """Run the agents of the nodes that the settings name, until cancelled. Raises ServiceError."""
    nodes = _nodes(service.settings)
    gpus = sum(kind.count for node in nodes for kind in node.gpus)
    pulled = Pulled()
    pulled.agents.update({node.name: None for node in nodes})
    threads = ThreadPoolExecutor(max_workers=max(1, min(gpus, THREADS_MAX)), thread_name_prefix="gpu")
    try:
        async with (
            rpc.serve(pulled.register, address=service.settings.grpc_address) as endpoint,
            asyncio.TaskGroup() as agents,
        ):
            for number, node in enumerate(nodes):
                lives = _Lives(service, node, f"{service.run}-{number}", endpoint, pulled, threads, connect)
                agents.create_task(lives.run())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Lives:
    """One node's agent, life after life."""

    service: Service[NodeAgentSettings]
    node: FleetNode
    name: str
    """Begins the names of its runs."""
    endpoint: str
    pulled: Pulled
    threads: ThreadPoolExecutor
    connect: Connect
    lives: int = 0

    async def run(self) -> None:
        data_dir = self.service.settings.data_dir
        hardware = HardwareFile(hardware_path(data_dir, self.node.name))
        journal_dir = data_dir / "agents" / self.node.name
        tickets = Tickets(data_dir / "tickets" / self.node.name)
        while True:
            journal = Journal(journal_dir, self.node.name)
            try:
                hardware.make(self.node)
                timing = {"create_ms": self.node.create_ms, "destroy_ms": self.node.destroy_ms}
                await self._live(SimulatedGpus(hardware, **timing), journal, tickets)
            except* RebootedError:
                logs.get("app", node=self.node.name).warning("the node was rebooted; its agent begins anew")
            finally:
                self.pulled.agents[self.node.name] = None
                journal.close()

    async def _live(self, backend: GpuBackend, journal: Journal, tickets: Tickets) -> None:
        """One life: read what is there, tell the core, and do what it says."""
        settings = self.service.settings
        self.lives += 1
        run = RunId(f"{self.name}-{self.lives}")
        log = logs.get("app", node=self.node.name)
        core = Agent(self.node.name, run, settings.rules())
        started = _what_is_there(backend, journal, tickets, self.endpoint)
        if started.journal_problem:
            log.error("rebuilding from devices and ledger", problem=started.journal_problem)
        async with Hands(backend, journal, tickets, self.threads) as hands, self.connect(self.node.name) as bus:
            runner: CoreRunner[Event] = CoreRunner(
                name=f"node-agent {self.node.name}",
                core=core,
                bus=bus,
                clock=self.service.clock,
                traces=self.service.traces,
                ledger=self.node.name,
                execute=hands.executors(),
                tick_s=settings.tick_s,
            )
            await runner.offer(started)
            self.pulled.agents[self.node.name] = core
            log.info("agent of a node", run=run, endpoint=self.endpoint, gpus=len(started.gpus))
            await runner.run()


def hardware_path(data_dir: Path, node: str) -> Path:
    """Where the simulated hardware of a node is kept."""
    return data_dir / "hardware" / f"{node}.json"


def _what_is_there(backend: GpuBackend, journal: Journal, tickets: Tickets, endpoint: str) -> AgentStarted:
    gpus = backend.read()
    problem = journal.problem
    if not problem and journal.is_new and any(gpu.instances for gpu in gpus):
        problem = "there is no journal, but there are instances on the GPUs"
    return AgentStarted(
        boot_id=backend.boot_id(),
        endpoint=endpoint,
        gpus=gpus,
        records=journal.records(),
        journal_problem=problem,
        driver_version=backend.driver_version(),
        tickets=tickets.names(),
    )


def _nodes(settings: NodeAgentSettings) -> tuple[FleetNode, ...]:
    """The nodes of the fleet file that this process serves. Raises FleetFileError."""
    path = settings.fleet_file
    if path is None:
        raise FleetFileError("SLUICE_NODE_AGENT_FLEET_FILE is not set; only simulated GPUs can be served so far")
    try:
        fleet: Fleet = parse_fleet(path.read_text(encoding="utf-8"), origin=str(path), catalog_only=True)
    except (OSError, UnicodeDecodeError) as error:
        raise FleetFileError(f"the fleet file {path} cannot be read: {error}") from error
    except FleetError as error:
        raise FleetFileError(str(error)) from error
    names = dict.fromkeys(settings.nodes) or {node.name: None for node in fleet.nodes}
    unknown = [name for name in names if fleet.node(name) is None]
    if unknown:
        raise FleetFileError(f"{path} has no node {unknown[0]!r}")
    return tuple(node for name in names if (node := fleet.node(name)) is not None)
