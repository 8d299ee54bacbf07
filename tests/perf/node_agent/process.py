"""One whole agent as a process, under a real nats-server: eight simulated GPUs of seven slices, slow as real ones."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from factories.agent_driver import AgentDriver, kill, short_folder, start_agent
from factories.broker.nats_server import Broker
from perf.figures import ready_s

from sluice.contracts.bus.events import Observed, Stream
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Booking, SliceGone, SliceReady
from sluice.runtime.nats.jetstream_bus import NatsBus

NODE = NodeName("node")
GPUS = 8
SLICES = 7
CREATE_MS = 200
"""Of a GPU instance with its compute instance; nothing that was measured on a real GPU."""
TURNS = 3
PATIENCE_S = 60.0
FLEET = f"""
[[node]]
name = "{NODE}"
gpus = [{{ model = "A100-SXM4-40GB", count = {GPUS}, mig = true }}]
timing = {{ create_ms = {CREATE_MS}, destroy_ms = 0 }}
"""


@dataclass(frozen=True, slots=True)
class Making:
    """Seconds for seven slices of one GPU, and for seven of each of the eight at once."""

    seven_s: float
    all_s: float

    @property
    def ratio(self) -> float:
        """1 when eight GPUs take as long as one."""
        return self.all_s / self.seven_s


@dataclass(frozen=True, slots=True)
class Idle:
    """An agent that holds 56 slices and has nothing to do."""

    resident_mib: float
    core_percent: float
    """Of one core."""
    started_s: float
    """From the start of its process to its first `ready`."""


@dataclass(slots=True)
class Running:
    """The agent, its broker, and what orders."""

    folder: Path
    bus: NatsBus
    desk: AgentDriver
    process: psutil.Process
    bookings: list[Booking] = field(default_factory=list)
    """What was made last."""

    async def make(self, names: dict[str, tuple[int, int]]) -> float:
        """Order 1g slices (GPU and start of each); seconds from the first order to the last `SliceReady`."""
        began = time.monotonic()
        orders = [
            asyncio.create_task(self.desk.grant(NODE, name, (gpu, "1g.5gb", start, 1)))
            for name, (gpu, start) in names.items()
        ]
        await self._heard(SliceReady, set(names))
        took = time.monotonic() - began
        self.bookings = [await order for order in orders]
        return took

    async def unmake(self) -> None:
        """Order all back that were made last."""
        for booking in self.bookings:
            await self.desk.revoke(booking)
        await self._heard(SliceGone, {booking.allocation for booking in self.bookings})

    async def _heard(self, kind: type, names: set[str]) -> None:
        """Wait until the agent has said this of all."""
        left = set(names)
        async with asyncio.timeout(PATIENCE_S), aclosing(self.bus.read(Stream.STATE, ("sluice.slice.>",))) as reading:
            async for batch in reading:
                for event in batch:
                    if isinstance(event, Observed) and isinstance(event.entry.message, kind):
                        left.discard(event.entry.message.allocation)
                if not left:
                    return


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        async with Broker(folder / "nats") as broker:
            bus = await NatsBus.connect(broker.url, name="desk")
            await bus.ensure_streams()
            told = {"SLUICE_NODE_AGENT_FLEET_FILE": folder / "fleet.toml", "SLUICE_NODE_AGENT_NODES": NODE}
            process = await start_agent(folder, SLUICE_NATS_URL=broker.url, **told)
            try:
                desk = AgentDriver(bus, folder)
                await desk.open(NODE)
                yield Running(folder, bus, desk, psutil.Process(process.pid))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 10)
                await kill(process)
                await bus.close()


async def measure(idle_s: float) -> tuple[Making, Idle]:
    """Seven on one GPU, 56 on eight, each the best of some turns, and then nothing for `idle_s`."""
    async with running() as agent:
        seven_s = all_s = PATIENCE_S
        for turn in range(TURNS):
            if turn:
                await agent.unmake()
            seven_s = min(seven_s, await agent.make({f"seven-{turn}-{start}": (0, start) for start in range(SLICES)}))
            await agent.unmake()
            everywhere = {f"all-{turn}-{gpu}-{start}": (gpu, start) for start in range(SLICES) for gpu in range(GPUS)}
            all_s = min(all_s, await agent.make(everywhere))
        started_s = ready_s(agent.process, [agent.folder / "agent.log"])
        if started_s is None:
            raise SystemExit(f"the agent was never ready:\n{agent.desk.said()}")
        used = agent.process.cpu_times()
        began = time.monotonic()
        await asyncio.sleep(idle_s)
        took = time.monotonic() - began
        now = agent.process.cpu_times()
        core = (now.user + now.system - used.user - used.system) / took
        resident = agent.process.memory_info().rss / 2**20
        return Making(seven_s, all_s), Idle(resident, core * 100, started_s)
