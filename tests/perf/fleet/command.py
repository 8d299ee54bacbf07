"""
A whole system with a large fleet on this machine: start, a burst of pods, steady state, a broker that restarts, a wipe.

Broker, allocator, inventory and pod-watcher are real processes; this one speaks for all agents on the wire.
"""

import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from factories.broker.nats_server import NatsServer, NatsServerConfig
from factories.processes import Process, own_environment
from factories.system import POD, fleet_text
from perf.figures import conclude, messages_at, options_of
from perf.fleet.agents import Fleet, running

from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import LOOPBACK, free_ports
from sluice_console.core.process_plan import SERVICES, SystemSpec, launches
from sluice_console.shell.operate.streams import declared

GPUS = 8
POLL_S = 0.25
DESCRIPTORS = 65_536
"""File descriptors of each process: the broker has one for each agent."""
SETTLE_S = 30.0
"""After the burst: the last announcements, and a first round of all that is periodic."""
BROKER, AGENTS = "nats-server", "agents, as simulated"
BROKER_UP_S = 60.0
MANIFESTS = "manifests"
PODS_PER_FILE = 50
"""A folder may hold 10,000 files."""
PROFILE = 'sluice.dev/profile: "1g.5gb"'


@dataclass
class Costs:
    """What one phase took: seconds, and by process the CPU seconds, and MiB of its own at the end."""

    phase: str
    seconds: float
    cpu_s: dict[str, float]
    memory_mib: dict[str, float]
    messages: float
    """In and out of the broker."""


@dataclass
class Site:
    """The processes of one system, and what was measured."""

    folder: Path
    broker: NatsServer
    fleet: Fleet
    services: dict[str, Process] = field(default_factory=dict)
    costs: list[Costs] = field(default_factory=list)

    def cpu_s(self) -> dict[str, float]:
        """Of the present run of each process."""
        times = {name: process.cpu_times() for name, process in self._processes().items()}
        return {name: each.user + each.system for name, each in times.items()}

    def _processes(self) -> dict[str, psutil.Process]:
        assert self.broker.process is not None, "it runs"
        pids = {BROKER: self.broker.process.pid} | {name: each.pid for name, each in self.services.items()}
        return {name: psutil.Process(pid) for name, pid in pids.items()} | {AGENTS: psutil.Process()}

    async def messages(self) -> float:
        return await asyncio.to_thread(messages_at, f"{LOOPBACK}:{self.broker.plan.monitor_port}", BROKER_UP_S)

    async def phase(self, name: str, is_over: Callable[[], bool], within_s: float) -> None:
        """Wait until it is over, and note what that cost. Raises TimeoutError."""
        before, carried, began = self.cpu_s(), await self.messages(), time.monotonic()
        await self._until(is_over, within_s)
        await self._note(name, began, before, carried)

    async def restart(self, name: str, is_over: Callable[[], bool], within_s: float, *, wiped: bool = False) -> None:
        """Kill the broker, start it with or without its store, and wait as in `phase`."""
        began = time.monotonic()
        before = self.cpu_s() | {BROKER: 0.0}
        await self.broker.kill()
        if wiped:
            self.broker.wipe()
        await self.broker.start()
        await self._until(is_over, within_s)
        await self._note(name, began, before, 0.0)

    async def _until(self, is_over: Callable[[], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not is_over():
                    for each in (process for process in self.services.values() if not process.runs):
                        raise AssertionError(f"{each.name} has ended:\n{each.log.read_text(errors='replace')[-3000:]}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            fleet = self.fleet
            seen = f"{fleet.connected} connected, {fleet.opened} opened, {fleet.ready} ready, {dict(fleet.seen)}"
            raise AssertionError(f"not within {within_s:g} s: {seen}") from None

    async def _note(self, name: str, began: float, before: dict[str, float], carried: float) -> None:
        passed_s, after, messages = time.monotonic() - began, self.cpu_s(), await self.messages()
        spent = {each: seconds - before[each] for each, seconds in after.items()}
        memory = {each: process.memory_full_info().uss / 2**20 for each, process in self._processes().items()}
        self.costs.append(Costs(name, passed_s, spent, memory, messages - carried))
        sys.stderr.write(f"{name}: {passed_s:.1f} s, CPU {spent}, {dict(self.fleet.seen)}\n")


@asynccontextmanager
async def site(folder: Path, nodes: int) -> AsyncIterator[Site]:
    """A broker and the services; agents begin to connect. All are stopped at the end."""
    text = fleet_text(nodes, GPUS)
    (folder / "fleet.toml").write_text(text)
    (folder / MANIFESTS).mkdir()
    port, monitor_port, inventory_port = free_ports(3)
    broker = NatsServer(NatsServerConfig("sluice", folder / "nats", port, monitor_port=monitor_port))
    spec = parse_fleet(text, origin="fleet.toml")
    plan = SystemSpec(
        nodes=("none",),
        fleet_file=str(folder / "fleet.toml"),
        pods_dir=str(folder / MANIFESTS),
        data_dir=str(folder),
        nats_url=broker.url,
        inventory_address=f"{LOOPBACK}:{inventory_port}",
        processes=1,
    )
    await broker.start()
    try:
        bus = await NatsBus.connect(broker.url, name="perf", within_s=BROKER_UP_S)
        await declared(bus, history_bytes=HISTORY_BYTES_MAX, within_s=BROKER_UP_S)
        await bus.close()
        found = Site(folder, broker, Fleet(LOOPBACK, port, LOGIN))
        with ExitStack() as services:
            for launch in (each for each in launches(plan) if each.service != "node-agent"):
                command = (sys.executable, "-m", SERVICES[launch.service])
                environment = own_environment() | launch.variables
                process = Process(launch.service, command, environment, folder / f"{launch.service}.log")
                process.start()
                services.callback(process.stop)
                found.services[launch.service] = process
            async with running(found.fleet, spec.nodes):
                yield found
    finally:
        await broker.stop()


LOGIN = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "perf", "version": "1"}


async def measure(nodes: int, pods: int, seconds: float, within_s: float) -> list[Costs]:
    with tempfile.TemporaryDirectory(prefix="sluice-perf-") as folder:
        async with site(Path(folder), nodes) as found:
            fleet = found.fleet
            await found.phase("start: all nodes in use", lambda: fleet.opened == nodes, within_s)
            _write(found.folder / MANIFESTS, pods)
            await found.phase(f"{pods:,} pods: all ready", lambda: fleet.ready == pods, within_s)
            await asyncio.sleep(SETTLE_S)
            over_at = time.monotonic() + seconds
            await found.phase("steady state", lambda: time.monotonic() > over_at, within_s)
            for name, wiped in (("broker killed: all nodes read", False), ("broker emptied: all nodes in use", True)):
                readings = fleet.seen["readings"]

                def all_back(readings: int = readings) -> bool:
                    return fleet.seen["readings"] >= readings + nodes and fleet.opened == nodes

                await found.restart(name, all_back, within_s, wiped=wiped)
                _write(found.folder / MANIFESTS, 1, prefix=f"after-{wiped}".lower())
                expected = fleet.ready + 1
                await found.phase("one more pod: ready", lambda expected=expected: fleet.ready == expected, within_s)
            return found.costs


def _write(folder: Path, pods: int, *, prefix: str = "pod") -> None:
    """Manifests of several pods each, complete at every moment."""
    names = [f"{prefix}-{number:06}" for number in range(pods)]
    for first in range(0, pods, PODS_PER_FILE):
        texts = (POD.format(name=each, annotations=PROFILE) for each in names[first : first + PODS_PER_FILE])
        draft = folder / f".{names[first]}"
        draft.write_text("---\n".join(texts))
        draft.rename(folder / f"{names[first]}.yaml")


def report(costs: Sequence[Costs]) -> str:
    names = list(costs[0].cpu_s)
    lines = [f"| phase | s | messages a second | {' | '.join(f'{name}, CPU s' for name in names)} |"]
    lines.append("|---" * (len(names) + 3) + "|")
    for each in costs:
        cells = " | ".join(f"{each.cpu_s[name]:.1f}" for name in names)
        lines.append(f"| {each.phase} | {each.seconds:.1f} | {each.messages / each.seconds:,.0f} | {cells} |")
    lines += ["", f"| memory of its own, MiB, after | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {each.phase} | {' | '.join(f'{each.memory_mib[n]:.0f}' for n in names)} |" for each in costs]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("fleet", __doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--pods-per-node", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the steady state")
    parser.add_argument("--within", type=float, default=1800.0, help="the most seconds of a phase")
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, PermissionError):
        most = max(most, DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < options.nodes + 1_000:
        sys.stderr.write(f"skipped: {options.nodes} nodes need as many file descriptors, and {most} are allowed\n")
        return 0
    costs = asyncio.run(measure(options.nodes, options.nodes * options.pods_per_node, options.seconds, options.within))
    conclude("fleet", f"{options.nodes:,} nodes of {GPUS} GPUs.\n\n{report(costs)}", write=options.write)
    return 0
