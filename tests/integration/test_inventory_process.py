"""The inventory as a process of its own, on a real nats-server."""

import asyncio
import contextlib
import os
import signal
import sys

import grpc.aio
import pytest
from factories.inventory import news, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write, WriteAccepted
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import NodeInventory
from sluice.contracts.pb import agent_pb2_grpc, inventory_pb2
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.contracts.proto.snapshots import snapshot_to_proto
from sluice.runtime.grpc import transport
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.process import Broker

WAIT_S = 20.0


class Agent(agent_pb2_grpc.AgentServiceServicer):
    """Answers with one snapshot."""

    async def GetInventory(self, request, context):  # noqa: N802
        return snapshot_to_proto(snapshot())


def the_news(endpoint: str) -> Write:
    address = subjects.node(snapshot().node)
    return Write(
        operation=OperationId("agent-1"),
        attempt=1,
        stream=Stream.STATE,
        subject=address.subject,
        guard=address.guard,
        expected=0,
        message=news(endpoint=endpoint),
        request="",
    )


async def until_pulled(bus: NatsBus) -> NodeInventory:
    """Wait until the bus holds the inventory of the node."""
    wanted = subjects.inventory(snapshot().node).subject
    async with contextlib.aclosing(bus.read(Stream.STATE, (wanted,))) as batches:
        async for batch in batches:
            for read in batch:
                found = getattr(getattr(read, "entry", None), "message", None)
                if isinstance(found, NodeInventory):
                    return found
    raise AssertionError("the reading has ended")


async def test_a_started_inventory_pulls_serves_and_stops_when_told(tmp_path):
    """An announcement leads to a pull and a message on the bus; gRPC answers; SIGTERM ends it with code 0."""
    (port,) = free_ports(1)
    settings = {
        "SLUICE_INVENTORY_GRPC_ADDRESS": f"127.0.0.1:{port}",
        "SLUICE_DATA_DIR": str(tmp_path),
        "SLUICE_INVENTORY_RECORD_FILE": str(tmp_path / "usage.db"),
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    agent = transport.serve(lambda server: agent_pb2_grpc.add_AgentServiceServicer_to_server(Agent(), server))
    async with asyncio.timeout(WAIT_S), Broker(tmp_path / "nats") as broker, agent as endpoint:
        bus = await NatsBus.connect(broker.url, name="test")
        await bus.ensure_streams()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sluice_inventory", env=others | settings | {"SLUICE_NATS_URL": broker.url}
        )
        try:
            assert isinstance(await bus.write(the_news(endpoint), {}), WriteAccepted)
            assert (await until_pulled(bus)).snapshot == snapshot()
            async with transport.channel(f"127.0.0.1:{port}") as channel:
                listed = await InventoryServiceStub(channel).ListGpus(inventory_pb2.ListGpusRequest())
                with pytest.raises(grpc.aio.AioRpcError, match="nothing is recorded yet: a minute is recorded when"):
                    await InventoryServiceStub(channel).Report(inventory_pb2.ReportRequest())
            assert listed.totals.creatable_total == 19
            recorder = await bus.last(Stream.STATE, subjects.lease("recorder").subject)
            assert recorder.message.endpoint == f"127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await bus.close()
