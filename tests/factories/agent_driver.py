"""What stands in for allocator and inventory before one agent, and starts and ends agents as processes."""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from factories.broker.memory_bus import MemoryBroker
from factories.processes import own_environment
from factories.waiting import meanwhile, until, wait_until
from factories.words import booking_of, write_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted, stream_of
from sluice.contracts.ids import AllocationId, NodeName, RunId
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.snapshots import snapshot_from_proto
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.service import Service
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_node_agent.shell.app import run_agents
from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.hardware_file import HardwareFile

PATIENCE_S = 60.0


class AgentDriver:
    """Stands in for allocator and inventory."""

    def __init__(self, bus, data_dir: Path, uuids: list[str] | None = None) -> None:
        """Write over `bus`; look into the hardware under `data_dir`, unless its GPUs are these."""
        self.bus = bus
        self._uuids = uuids
        self.data_dir = data_dir
        self.number = 0
        self.process: asyncio.Task[None] | asyncio.subprocess.Process | None = None
        """The agent, or those that run in this process."""

    async def last(self, address):
        with contextlib.suppress(TimeoutError):
            entry = await self.bus.last(stream_of(address.kind), address.subject)
            return entry.message if entry is not None else None

    async def until(self, address, right):
        message = None

        async def look():
            nonlocal message
            message = await self.last(address)
            return message if message is not None and right(message) else None

        return await until(look, lambda: f"{address.subject} stayed at {message}\n{self.said()}", within_s=PATIENCE_S)

    async def write(self, address, message) -> None:
        self.number += 1
        current = await self.bus.last(stream_of(address.kind), address.subject)
        write = write_of(address, message, current, f"desk-{self.number}", guard=address.subject)
        assert isinstance(await self.bus.write(write, {}), WriteAccepted)

    async def open(self, node, known_run=""):
        """Open a node for the run of its agent, once that is another than `known_run`."""
        news = await self.until(subjects.node(node), lambda news: news.agent_run != known_run)
        await self.bus.ensure_agent(node)
        incarnation = await self.bus.incarnation(Stream.BOOK)
        head = msg.NodeOpened(node=node, incarnation=incarnation, boot_id=news.boot_id, agent_run=news.agent_run)
        await self.write(subjects.head(node), head)
        return news

    async def grant(self, node, allocation, *devices, share: msg.Share | None = None, **pod) -> msg.Booking:
        """Order a slice, or shares, of devices given as (GPU index, profile, start, size); `pod` is booked with it."""
        uuids = self.uuids(node)
        granted = tuple(
            msg.DeviceGrant(container="main", gpu=uuids[gpu], profile=profile, start=start, size=size, share=share)
            for gpu, profile, start, size in devices
        )
        known = {"request": "r", "owner": f"pod-{allocation}", "name": "pod"}
        booking = booking_of(allocation, node, granted, **(known | pod))
        message = msg.Grant(revision=1, incarnation=await self.bus.incarnation(Stream.BOOK), booking=booking)
        await self.write(subjects.ledger(node, booking.allocation), message)
        return booking

    async def revoke(self, booking) -> None:
        incarnation = await self.bus.incarnation(Stream.BOOK)
        message = msg.Revoke(revision=2, incarnation=incarnation, booking=booking, cause="pod gone")
        await self.write(subjects.ledger(booking.node, booking.allocation), message)

    async def ready(self, node, allocation) -> msg.SliceReady:
        address = subjects.slice_(node, AllocationId(allocation))
        return await self.until(address, lambda word: isinstance(word, msg.SliceReady))

    async def gone(self, node, allocation) -> msg.SliceGone:
        address = subjects.slice_(node, AllocationId(allocation))
        return await self.until(address, lambda word: isinstance(word, msg.SliceGone))

    def said(self) -> str:
        """The end of the log of an agent that is a process: for the message of a failing test."""
        log = self.data_dir / "agent.log"
        return log.read_text(errors="replace")[-6000:] if log.exists() else ""

    def hardware(self, node) -> HardwareFile:
        return HardwareFile(hardware_path(self.data_dir, node))

    def uuids(self, node) -> list[str]:
        return self._uuids or [gpu.uuid for gpu in self.hardware(node).read().gpus]

    def instances(self, node) -> list[tuple[str, int]]:
        return [(i.profile, i.start) for gpu in self.hardware(node).read().gpus for i in gpu.instances]


async def pull(endpoint: str, node: NodeName) -> msg.NodeSnapshot:
    async with transport.channel(endpoint) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        return snapshot_from_proto(await stub.GetInventory(agent_pb2.GetInventoryRequest(node=node)))


@asynccontextmanager
async def running(settings, run="run1", broker=None):
    """The agents of a process, on a memory bus (unless given, one of their own); yields who stands in before them."""
    broker = broker or MemoryBroker()
    service = Service("node-agent", RunId(run), settings, SystemClock(), RequestTraces())
    desk = AgentDriver(broker.bus("desk"), settings.data_dir)

    @asynccontextmanager
    async def connect(node):
        bus = broker.bus(str(node))
        try:
            yield bus
        finally:
            await bus.close()

    async with meanwhile(run_agents(service, connect, Health(service.clock))) as desk.process:
        yield desk


async def start_agent(data_dir: Path, **variables: object) -> asyncio.subprocess.Process:
    """Start an agent as a process, with settings as variables (upper case); its log is `agent.log`."""
    told = {name: str(value) for name, value in variables.items()}
    environment = own_environment() | {"SLUICE_DATA_DIR": str(data_dir)} | told
    with (data_dir / "agent.log").open("ab") as log:
        pipes = {"stdin": asyncio.subprocess.DEVNULL, "stderr": log}
        return await asyncio.create_subprocess_exec(sys.executable, "-m", "sluice_node_agent", env=environment, **pipes)


async def kill(process: asyncio.subprocess.Process) -> None:
    """SIGKILL, unless it has ended."""
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        await process.wait()


class AgentProcess(AgentDriver):
    """An agent of one node as a process, which a test ends and starts again, and the stand-ins for its services."""

    def __init__(self, node: NodeName, folder: Path, broker, bus, uuids=None, **settings: object) -> None:
        """`settings` are variables of each of its runs."""
        super().__init__(bus, folder, uuids)
        self.node, self.news = node, None
        often = {"SLUICE_NODE_AGENT_TICK_S": 0.05, "SLUICE_NODE_AGENT_BACK_OFF_FIRST_S": 0.1}
        self._settings = often | {"SLUICE_NATS_URL": broker.url} | settings

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.kill()

    async def start(self, **more: object) -> None:
        """Begin another run, and open the node for it."""
        self.process = await start_agent(self.data_dir, **(self._settings | more))
        await self.open_again()

    async def open_again(self) -> None:
        """Open the node for the run that comes next."""
        self.news = await self.open(self.node, known_run="" if self.news is None else self.news.agent_run)

    async def kill(self) -> None:
        if self.process is not None:
            await kill(self.process)

    async def snapshot(self) -> msg.NodeSnapshot:
        return await pull(self.news.endpoint, self.node)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for sockets; removed at the end, with every daemon in it."""
    folder = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    try:
        yield folder
    finally:
        wait_until(lambda: _none_left(folder), "MPS processes end")
        shutil.rmtree(folder)


def daemons_below(folder: Path) -> list[psutil.Process]:
    """Live processes of MPS homes in this folder, by their environment: also one that has not taken its name yet."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            pipe = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", "")
            if pipe.startswith(f"{folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _none_left(folder: Path) -> bool:
    running = daemons_below(folder)
    for process in running:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return not running


def runs(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
