"""A small system of real processes: started, supervised and stopped, each service with a wire to each broker."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from chaos.deaths import Death, Deaths
from chaos.isolation import Islands, entered, small_disks
from chaos.planted import command
from chaos.wires import HOST, Wire
from factories.broker.bus_rigs import ensured
from factories.broker.nats_server import Broker, Launch, NatsServer, NatsServerConfig
from factories.broker.nats_server import ServerProcess as BrokerProcess
from factories.processes import Process, own_environment, switch_off, tied
from factories.waiting import meanwhile

from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.server_config import server_binary
from sluice_console.core.process_plan import SystemSpec, launches
from sluice_console.shell.process.data_directory import lock_data_directory, power_switch, short_mps_dir
from sluice_node_agent.shell import paths

NODES = ("n1", "n2", "n3")
ALLOCATORS = 2
FLEET = "".join(
    f"""[[node]]
name = "{node}"
gpus = [{{ model = "a100-40gb", count = 2, mig = true }}]
timing = {{ create_ms = 10, destroy_ms = 10 }}
"""
    for node in NODES
)
SETTINGS = {"SLUICE_ALLOCATOR_ORPHAN_GRACE_S": "5", "SLUICE_LOG_FORMAT": "json"}
LOOK_S = 0.05
"""How often the supervisor looks for processes that have exited by themselves."""
AGAIN_FIRST_S, AGAIN_MAX_S = 0.2, 2.0
"""Its pause before it starts one again that keeps dying, as it grows."""


@dataclass(frozen=True, slots=True)
class Plan(NatsServerConfig):
    """A server that tells clients of no other; its health is at `http_port`, `addresses` are those of all servers."""

    http_port: int = 0
    number: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return self.addresses[self.number] if self.addresses else HOST

    def config(self) -> str:
        text = NatsServerConfig.config(self).replace("cluster { ", "cluster { no_advertise: true, ")
        text = text.replace(f'"{HOST}:', f'"{self.address}:')
        for address, route in zip(self.addresses, self.routes, strict=bool(self.addresses)):
            text = text.replace(f"//{HOST}:{route}", f"//{address}:{route}")
        return f'{text}http: "{self.address}:{self.http_port}"\n'


class System:
    """The running system, as an async context."""

    def __init__(self, folder: Path, servers: int, planted: str = "") -> None:
        """Nothing runs yet. `planted`: a defect that one of its services has."""
        self.planted = planted
        self.folder, self.size = folder, servers
        self.islands = Islands(servers) if servers > 1 and entered() else None
        """The brokers' own networks, where they have some."""
        self.small_disks = entered()
        """Whether each agent's journal has a small disk of its own."""
        self.data, self.pods, self.logs = folder / "data", folder / "pods", folder / "logs"
        self.broker = Broker(folder / "nats", size=servers)
        self.services: dict[str, Process] = {}
        self.wires: dict[str, list[Wire]] = {}
        """The ways of one service, one to each broker."""
        self.down: set[str] = set()
        """Services that are dead on purpose: they are not restarted."""
        self.deaths = Deaths()
        self._stack = ExitStack()
        self._ending = AsyncExitStack()

    # -- its life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything; that it works is for the first pod to show."""
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _start(self) -> None:
        for folder in (self.data, self.pods, self.logs):
            folder.mkdir(parents=True)
        lock = self._stack.enter_context(lock_data_directory(self.data / "up.lock"))
        mps_dir = short_mps_dir(self.data, NODES)
        self._stack.callback(switch_off, power_switch(self.data, mps_dir, lock))
        fleet = self.folder / "fleet.toml"
        fleet.write_text(FLEET)
        for node in NODES:
            hardware = paths.hardware_path(self.data, node)
            hardware.parent.mkdir(parents=True, exist_ok=True)
            hardware.with_name(f"{hardware.name}.log").touch()
        if self.small_disks:
            self._stack.enter_context(small_disks([self.journal(node) for node in NODES]))
        await self._start_brokers()
        (inventory_port,) = free_ports(1)
        wanted = SystemSpec(
            nodes=NODES,
            fleet_file=str(fleet),
            pods_dir=str(self.pods),
            data_dir=str(self.data),
            nats_url="",
            inventory_address=f"{HOST}:{inventory_port}",
            processes=len(NODES),
            allocators=ALLOCATORS,
            mps_dir=mps_dir,
        )
        for launch in launches(wanted):
            name = launch.name.replace(" ", "-")
            url = await self._wire(name)
            environment = own_environment() | SETTINGS | launch.variables | {"SLUICE_NATS_URL": url}
            process = Process(name, command(launch.service, self.planted), environment, self.logs / f"{name}.log")
            self.services[name] = process
            self.services[name].start()
        await self._ending.enter_async_context(meanwhile(self._supervise()))

    async def _start_brokers(self) -> None:
        ports = free_ports(3 * self.size)
        routes = tuple(ports[2 * self.size :]) if self.size > 1 else ()
        islands = self._stack.enter_context(self.islands) if self.islands is not None else None
        addresses = tuple(islands.address(number) for number in range(self.size)) if islands is not None else ()
        self._ending.push_async_callback(self._stop_brokers)
        for number in range(self.size):
            name = f"broker-{number + 1}"
            route = routes[number] if routes else 0
            folder, http_port = self.folder / "nats" / name, ports[self.size + number]
            plan = Plan(
                name,
                folder,
                ports[number],
                cluster_port=route,
                routes=routes,
                http_port=http_port,
                number=number,
                addresses=addresses,
            )
            before = islands.inside(number) if islands is not None else ()
            self.broker.servers.append(NatsServer(plan, _launch(before)))
            if addresses:  # for all who look for it on the loopback
                wire = Wire((addresses[number], plan.port), plan.port)
                await wire.start()
                self._ending.push_async_callback(wire.stop)
        for server in self.broker.servers:
            await server.start()
        await self.broker.ready()
        bus = await NatsBus.connect(self.broker.url, name="administrator")
        try:
            await ensured(bus)
        finally:
            await bus.close()

    async def _stop_brokers(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.broker.servers))

    async def _wire(self, service: str) -> str:
        self.wires[service] = [Wire((plan.address, plan.port)) for plan in self.plans]
        for wire in self.wires[service]:
            await wire.start()
            self._ending.push_async_callback(wire.stop)
        return ",".join(f"nats://{HOST}:{wire.port}" for wire in self.wires[service])

    def tickets(self, node: str) -> Path:
        return paths.tickets_directory(self.data, node)

    async def _stop(self) -> None:
        for process in self.services.values():
            self.down.add(process.name)
        for wire in self.every_wire():
            wire.mend()
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in self.services.values()))
        await self._ending.aclose()
        self._stack.close()

    # -- the supervisor -----------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        again: dict[str, float] = {}
        pause_s = dict.fromkeys(self.services, AGAIN_FIRST_S)
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for name, process in self.services.items():
                if name in self.down or process.runs:
                    again.pop(name, None)
                elif name not in again:
                    self.deaths.note(process, time.time())
                    again[name] = now + pause_s[name]
                    pause_s[name] = min(AGAIN_MAX_S, pause_s[name] * 2)
                elif again[name] <= now:
                    process.start()
                    del again[name]

    # -- what faults need ---------------------------------------------------------------------------------------------

    @property
    def plans(self) -> list[Plan]:
        return [server.plan for server in self.broker.servers if isinstance(server.plan, Plan)]

    def journal(self, node: str) -> Path:
        return paths.agent_directory(self.data, node)

    def server(self, name: str) -> NatsServer:
        return next(server for server in self.broker.servers if server.plan.name == name)

    def every_wire(self) -> Iterator[Wire]:
        for wires in self.wires.values():
            yield from wires

    @staticmethod
    def node_of(agent: str) -> str:
        """The node that an agent's process serves; empty for another service."""
        return agent.removeprefix("node-agent-") if agent.startswith("node-agent-") else ""

    @property
    def agents(self) -> Sequence[str]:
        return [name for name in self.services if self.node_of(name)]

    def died(self) -> list[Death]:
        """Processes that have exited by themselves until now, also since the supervisor's last look."""
        for name, process in self.services.items():
            if name not in self.down:
                self.deaths.note(process, time.time())
        return self.deaths.seen

    @contextlib.contextmanager
    def on_purpose(self, service: str) -> Iterator[Process]:
        """A service that may be dead meanwhile; runs in the end."""
        process = self.services[service]
        self.deaths.note(process, time.time())  # before any fault is done to it
        self.down.add(service)
        try:
            yield process
            if not process.runs:
                process.start()
        finally:
            self.down.discard(service)


def _launch(before: Sequence[str]) -> Launch:
    """Starts a server as the library does, behind these arguments; and it does not outlive us."""

    async def launch(config: Path, log: Path) -> BrokerProcess:
        with log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *tied(*before, str(server_binary()), "-c", str(config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    return launch
