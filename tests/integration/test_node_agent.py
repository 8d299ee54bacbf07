"""The agent's shell: real files, real gRPC, a real process that is killed, and a real broker."""

import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager

import grpc
import msgspec
import pytest

from sluice.contracts import subjects
from sluice.contracts.convert import snapshot_from_proto
from sluice.contracts.exchange import Stream, Write, WriteAccepted
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, RunId, SourceName
from sluice.contracts.messages import (
    Booking,
    DeviceGrant,
    Grant,
    NodeOpened,
    Revoke,
    SliceGone,
    SliceReady,
)
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.runtime import rpc
from sluice.runtime.broker import Broker
from sluice.runtime.clock import SystemClock
from sluice.runtime.memory_bus import MemoryBroker
from sluice.runtime.nats_bus import NatsBus
from sluice.runtime.service import Service
from sluice.runtime.telemetry import TraceBook
from sluice_node_agent.device.hardware_file import HardwareFile
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.app import FleetFileError, hardware_path, run_agents
from sluice_node_agent.shell.hardware_command import change_hardware
from sluice_node_agent.shell.journal import JournalError

N1, N2 = NodeName("n1.example"), NodeName("n2")
FLEET = """
[[node]]
name = "n1.example"
gpus = [{ model = "a100-40gb", count = 2 }]
timing = { create_ms = 40, destroy_ms = 20 }
[[node]]
name = "n2"
gpus = [{ model = "a100-40gb", count = 1 }]
timing = { create_ms = 40, destroy_ms = 20 }
"""
PATIENCE_S = 15.0


@pytest.fixture
def settings(tmp_path):
    """Both nodes of the fleet in one process, in a hurry."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    return NodeAgentSettings(
        data_dir=tmp_path, fleet_file=tmp_path / "fleet.toml", tick_s=0.05, back_off_first_s=0.1, read_devices_s=0.2
    )


def _service(settings, run="run1"):
    return Service("node-agent", RunId(run), settings, SystemClock(), TraceBook())


class Desk:
    """Stands in for allocator and inventory."""

    def __init__(self, bus, data_dir):
        """Write over `bus`; look into the hardware under `data_dir`."""
        self.bus = bus
        self.data_dir = data_dir
        self.number = 0

    async def last(self, address):
        """The last value of a noun."""
        with contextlib.suppress(TimeoutError):
            entry = await self.bus.last(address_stream(address), address.subject)
            return entry.message if entry is not None else None

    async def until(self, address, right):
        """Wait until the last value of a noun is right."""
        message = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    message = await self.last(address)
                    if message is not None and right(message):
                        return message
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{address.subject} stayed at {message}") from None

    async def write(self, address, message):
        """Write once, whatever is there."""
        self.number += 1
        stream = address_stream(address)
        current = await self.bus.last(stream, address.subject)
        write = Write(
            operation=OperationId(f"desk-{self.number}"),
            attempt=1,
            stream=stream,
            subject=address.subject,
            guard=address.subject,
            expected=current.sequence if current is not None else 0,
            message=message,
            request="",
        )
        assert isinstance(await self.bus.write(write, {}), WriteAccepted)

    async def open(self, node, known_run=""):
        """Open a node for the run of its agent, once that is another than `known_run`."""
        news = await self.until(subjects.node(node), lambda news: news.agent_run != known_run)
        await self.bus.ensure_agent(node)
        incarnation = await self.bus.incarnation(Stream.BOOK)
        head = NodeOpened(node=node, incarnation=incarnation, boot_id=news.boot_id, agent_run=news.agent_run)
        await self.write(subjects.head(node), head)
        return news

    async def grant(self, node, allocation, *devices):
        """Order a slice of devices given as (GPU index, profile, start, size)."""
        uuids = [gpu.uuid for gpu in self.hardware(node).read().gpus]
        booking = Booking(
            allocation=AllocationId(allocation),
            request=RequestId("r"),
            request_revision=1,
            source=SourceName("folder"),
            owner="pod",
            namespace="default",
            name="pod",
            node=node,
            devices=tuple(
                DeviceGrant(container="main", gpu=uuids[gpu], profile=profile, start=start, size=size)
                for gpu, profile, start, size in devices
            ),
        )
        incarnation = await self.bus.incarnation(Stream.BOOK)
        message = Grant(revision=1, incarnation=incarnation, booking=booking)
        await self.write(subjects.ledger(node, booking.allocation), message)
        return booking

    async def revoke(self, booking):
        """Order it back."""
        incarnation = await self.bus.incarnation(Stream.BOOK)
        message = Revoke(revision=2, incarnation=incarnation, booking=booking, cause="pod gone")
        await self.write(subjects.ledger(booking.node, booking.allocation), message)

    async def ready(self, node, allocation):
        """Wait for the slice."""
        address = subjects.slice_(node, AllocationId(allocation))
        return await self.until(address, lambda word: isinstance(word, SliceReady))

    async def gone(self, node, allocation):
        """Wait for its end."""
        address = subjects.slice_(node, AllocationId(allocation))
        return await self.until(address, lambda word: isinstance(word, SliceGone))

    def hardware(self, node):
        """The hardware file of a node."""
        return HardwareFile(hardware_path(self.data_dir, node))

    def instances(self, node):
        """What is on a node's GPUs."""
        return [(i.profile, i.start) for gpu in self.hardware(node).read().gpus for i in gpu.instances]


def address_stream(address):
    """The stream of a noun."""
    return Stream.BOOK if address.kind in {"ledger", "binding"} else Stream.STATE


@asynccontextmanager
async def running(service, broker):
    """The agents of a process, on a memory bus."""

    @asynccontextmanager
    async def connect(node):
        bus = broker.bus(str(node))
        try:
            yield bus
        finally:
            await bus.close()

    task = asyncio.create_task(run_agents(service, connect))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_agents_of_one_process_make_slices_and_answer_the_pull(settings):
    """A user on either node gets a slice; the inventory sees what is there, and whose it is."""
    broker = MemoryBroker()
    desk = Desk(broker.bus("desk"), settings.data_dir)
    async with running(_service(settings), broker):
        news = await desk.open(N1)
        await desk.open(N2)
        await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4), (1, "1g.5gb", 6, 1))
        second = await desk.grant(N2, "a2", (0, "7g.40gb", 0, 8))
        word = await desk.ready(N1, "a1")
        await desk.ready(N2, "a2")
        assert (settings.data_dir / "tickets" / N1 / word.ticket / "slice.json").is_file()
        async with rpc.channel(news.endpoint) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            snapshot = snapshot_from_proto(await stub.GetInventory(agent_pb2.GetInventoryRequest(node=N1)))
            health = await stub.GetHealth(agent_pb2.GetHealthRequest(node=N2))
            with pytest.raises(grpc.aio.AioRpcError) as wrong:
                await stub.GetInventory(agent_pb2.GetInventoryRequest(node="n3"))
        assert [i.uuid for gpu in snapshot.gpus for i in gpu.instances] == [d.uuid for d in word.devices]
        assert [i.allocation for gpu in snapshot.gpus for i in gpu.instances] == ["a1", "a1"]
        assert (health.node, health.ready) == (N2, True)
        assert wrong.value.code() is grpc.StatusCode.NOT_FOUND
        await desk.revoke(second)
        await desk.gone(N2, "a2")
        assert desk.instances(N2) == []


async def test_a_reboot_under_a_running_agent_makes_standing_slices_again(settings, capsys):
    """A rebooted node comes back by itself, with new UUIDs and tickets."""
    broker = MemoryBroker()
    desk = Desk(broker.bus("desk"), settings.data_dir)
    async with running(_service(settings), broker):
        first = await desk.open(N1)
        await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4))
        before = await desk.ready(N1, "a1")
        assert change_hardware(["hardware", "--data", str(settings.data_dir), N1, "reboot"]) == 0
        again = await desk.open(N1, known_run=first.agent_run)
        assert again.boot_id != first.boot_id
        address = subjects.slice_(N1, AllocationId("a1"))
        after = await desk.until(address, lambda w: isinstance(w, SliceReady) and w.ticket != before.ticket)
        assert after.devices[0].uuid != before.devices[0].uuid
        assert desk.instances(N1) == [("3g.20gb", 4)]


async def test_a_tenant_that_runs_on_keeps_its_place_until_it_ends(settings, capsys):
    """A place is free only when the process on it is gone, as a person can see with the hardware command."""
    broker = MemoryBroker()
    desk = Desk(broker.bus("desk"), settings.data_dir)
    command = ["hardware", "--data", str(settings.data_dir), N1]
    async with running(_service(settings), broker):
        await desk.open(N1)
        booking = await desk.grant(N1, "a1", (0, "3g.20gb", 4, 4))
        uuid = (await desk.ready(N1, "a1")).devices[0].uuid
        assert change_hardware([*command, "start-process", uuid, "--owner", "pod"]) == 0
        pid = capsys.readouterr().out.split()[-1]
        await desk.revoke(booking)
        await desk.until(subjects.slice_(N1, AllocationId("a1")), lambda w: type(w).__name__ == "SliceQuarantined")
        assert desk.instances(N1) == [("3g.20gb", 4)]
        assert change_hardware([*command, "stop-process", pid]) == 0
        await desk.gone(N1, "a1")
        assert desk.instances(N1) == []


async def test_a_second_agent_and_wrong_settings_are_refused_in_one_sentence(settings):
    """A mistake in starting an agent is told, and harms nothing."""
    broker = MemoryBroker()
    desk = Desk(broker.bus("desk"), settings.data_dir)
    async with running(_service(settings), broker):
        await desk.open(N1)
        with pytest.raises(ExceptionGroup) as refused:
            async with running(_service(settings, "run2"), broker) as second:
                await second
        assert refused.group_contains(JournalError, match="another agent of node")
    for wrong in ({"nodes": ("n9",)}, {"fleet_file": None}, {"fleet_file": settings.data_dir / "none.toml"}):
        with pytest.raises(FleetFileError):
            await run_agents(_service(msgspec.structs.replace(settings, **wrong)), lambda node: None)


def test_the_hardware_command_refuses_in_words(settings, tmp_path, capsys):
    """Nobody has to read a traceback to learn what is wrong."""
    assert change_hardware(["hardware", "--data", str(tmp_path), "n1", "show"]) == 1
    assert "no simulated node 'n1'" in capsys.readouterr().err


async def _start_process(settings, broker_url):
    environment = {
        **os.environ,
        "SLUICE_NATS_URL": broker_url,
        "SLUICE_DATA_DIR": str(settings.data_dir),
        "SLUICE_NODE_AGENT_FLEET_FILE": str(settings.fleet_file),
        "SLUICE_NODE_AGENT_NODES": N1,
        "SLUICE_NODE_AGENT_TICK_S": "0.05",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sluice_node_agent", env=environment, stderr=asyncio.subprocess.DEVNULL
    )


async def test_a_killed_agent_goes_on_where_it_was_over_a_real_broker(settings, tmp_path):
    """Kill -9 in the middle of making and unmaking loses no slice and leaves none behind."""
    async with Broker(tmp_path / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="desk")
        await bus.ensure_streams()
        desk = Desk(bus, settings.data_dir)
        process = await _start_process(settings, broker.url)
        try:
            run = (await desk.open(N1)).agent_run
            bookings = []
            for number, delay_s in enumerate((0.0, 0.03, 0.06, 0.1)):
                name = f"a{number}"
                booking = await desk.grant(
                    N1, name, (number % 2, "1g.5gb", number, 1), ((number + 1) % 2, "1g.5gb", number, 1)
                )
                bookings.append(booking)
                if number:
                    await desk.revoke(bookings[number - 1])
                await asyncio.sleep(delay_s)
                process.send_signal(signal.SIGKILL)
                await process.wait()
                process = await _start_process(settings, broker.url)
                run = (await desk.open(N1, known_run=run)).agent_run
                await desk.ready(N1, name)
            for booking in bookings[:-1]:
                await desk.gone(N1, booking.allocation)
            assert desk.instances(N1) == [("1g.5gb", 3), ("1g.5gb", 3)]
            await desk.revoke(bookings[-1])
            await desk.gone(N1, "a3")
            assert desk.instances(N1) == []
            assert list((settings.data_dir / "tickets" / N1).iterdir()) == []
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await bus.close()
