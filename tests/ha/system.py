"""A whole Sluice for a fake cluster, two of everything that may be twice; a dead process stays dead until restarted."""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Self

from factories.broker.bus_rigs import ensured
from factories.broker.nats_server import Broker
from factories.cluster.kubernetes import Cluster
from factories.processes import Process, own_environment, switch_off
from factories.waiting import until
from fake_kube.server import FakeKube

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.messages import LeaseHeld
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.process_plan import SERVICES
from sluice_console.shell.live.live_fleet import LiveFleet, following
from sluice_console.shell.process.data_directory import lock_data_directory, power_switch, short_mps_dir

NEXT_VERSION = Path(__file__).with_name("next_version.py")
READY_WITHIN_S = 60.0
TWICE = ("allocator", "pod-watcher", "inventory")
"""Services of which there are two. Of the first two one works, by a lease; both inventories do."""
LEASES = {"allocator": "allocator", "pod-watcher": "pod-watcher"}
NODE = """[[node]]
name = "{name}"
gpus = [{{ model = "A100-SXM4-40GB", count = {gpus}, mig = true }}]
timing = {{ create_ms = 5, destroy_ms = 5 }}
"""


class System:
    """The running system, as an async context. `settings` are for all processes, with their whole names."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: int = 1,
        nodes: int = 2,
        gpus: int = 4,
        copies: int = 2,
        program: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing runs yet. `program` runs services in another way than `python -m` (`lying_lease.py`)."""
        self.folder, self.data, self.logs = folder, folder / "data", folder / "logs"
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.services: dict[str, Process] = {}
        self.kube = FakeKube()
        self.broker = Broker(folder / "nats", size=servers)
        self._gpus, self._copies, self._settings = gpus, copies, dict(settings or {})
        self._program = (str(program),) if program is not None else ("-m",)
        self._stack, self._ending = ExitStack(), AsyncExitStack()
        self.cluster: Cluster
        self.live: LiveFleet
        self.bus: NatsBus

    # -- its life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything; returns when every node is open and pods are listed."""
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in self.services.values()))
        await self._ending.aclose()
        await asyncio.to_thread(self._stack.close)

    async def _start(self) -> None:
        for folder in (self.data, self.logs):
            folder.mkdir(parents=True)
        lock = self._stack.enter_context(lock_data_directory(self.data / "up.lock"))
        mps_dir = short_mps_dir(self.data, self.nodes)
        self._stack.callback(switch_off, power_switch(self.data, mps_dir, lock))
        kube = self._stack.enter_context(self.kube)
        for node in self.nodes:
            kube.nodes.add(node, cpu="64", memory="512Gi")
        kubeconfig = kube.kubeconfig(self.folder / "kubeconfig")
        self.cluster = await self._ending.enter_async_context(Cluster(kubeconfig, kube).opened())
        await self._ending.enter_async_context(self.broker)
        self.bus = await NatsBus.connect(self.broker.url, name="administrator")
        self._ending.push_async_callback(self.bus.close)
        await ensured(self.bus)
        fleet = self.folder / "fleet.toml"
        fleet.write_text("".join(NODE.format(name=node, gpus=self._gpus) for node in self.nodes))
        agent = {"FLEET_FILE": str(fleet)} | ({"MPS_DIR": mps_dir} if mps_dir else {})
        for node in self.nodes:
            self._add(f"node-agent-{node}", "node-agent", agent | {"NODES": node})
        watcher = {"ROLE": "watch", "KUBECONFIG": str(kubeconfig), "MIRROR_GPUS": "false"}
        for number in range(1, self._copies + 1):
            self._add(f"allocator-{number}", "allocator", {})
            self._add(f"inventory-{number}", "inventory", {"GRPC_ADDRESS": "127.0.0.1:0"})
            self._add(f"pod-watcher-{number}", "pod-watcher", watcher)
        for process in self.services.values():
            process.start()
        self.live = await self._ending.enter_async_context(following(self.bus))
        await self.live.until(self._is_ready, within_s=READY_WITHIN_S, what=f"the system to be ready\n{self.folder}")

    def _is_ready(self, fleet_state: FleetState) -> bool:
        pulled = fleet_state.inventories()
        fresh = all(node in pulled and not pulled[node].stale for node in self.nodes)
        return fresh and not fleet_state.unopened(list(self.nodes)) and "sluice.source.cluster" in fleet_state.values

    def _add(self, name: str, service: str, variables: Mapping[str, str]) -> None:
        prefix = f"SLUICE_{service.upper().replace('-', '_')}_"
        environment = own_environment() | {"SLUICE_NATS_URL": self.broker.url, "SLUICE_DATA_DIR": str(self.data)}
        environment |= {"SLUICE_LOG_FORMAT": "json", **self._settings}
        environment |= {prefix + key: value for key, value in variables.items()}
        command = (sys.executable, *self._program, SERVICES[service])
        self.services[name] = Process(name, command, environment, self.logs / f"{name}.log")

    # -- who is who ---------------------------------------------------------------------------------------------------

    def copies(self, service: str) -> list[Process]:
        return [process for name, process in self.services.items() if name.startswith(service)]

    async def working(self, service: str) -> Process:
        """The working replica of a service, by its lease; of inventories the first that runs. Waits, bounded."""
        role = LEASES.get(service)
        if role is None:
            return next(process for process in self.copies(service) if process.runs)
        found: Process = await until(lambda: self._holder(service, role), f"a {service} leads: {self.logs}")
        return found

    async def _holder(self, service: str, role: str) -> Process | None:
        try:
            entry = await self.bus.last(Stream.STATE, subjects.lease(role).subject)
        except TimeoutError:
            return None
        held = entry.message if entry is not None else None
        if not isinstance(held, LeaseHeld) or not held.owner:
            return None
        running = [process for process in self.copies(service) if process.runs]
        return next((process for process in running if held.owner in self.runs_of(process)), None)

    @staticmethod
    def runs_of(process: Process) -> list[str]:
        """The run ids of a process, by its log."""
        lines = process.log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line["run"] for line in said if line["event"] == "starting"]

    async def stands_by(self, process: Process) -> None:
        """Wait until a process that was started has come so far that it could take over."""
        wanted = "starting" if process.name.startswith("pod-watcher") else "ready"

        def has_come() -> bool:
            assert process.runs, f"{process.name} has ended: {process.log.read_text()[-3000:]}"
            *earlier, life = process.log.read_text(encoding="utf-8", errors="replace").split('"event":"starting"')
            return len(earlier) == process.lives and (wanted == "starting" or f'"event":"{wanted}"' in life)

        await until(has_come, f"{process.name} is {wanted}: {process.log}")
