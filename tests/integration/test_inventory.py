"""The inventory in production form: real gRPC to fake agents and from real clients, on the memory bus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import msgspec
import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.inventory import EMPTY_A100, gpu_report, news, snapshot
from factories.waiting import meanwhile, until
from factories.words import booking_of

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice.contracts.messages import DeviceGrant, InstanceReport, NodeChanged, NodeInventory, NodeSnapshot, SliceReport
from sluice.contracts.pb import agent_pb2_grpc, inventory_pb2, node_pb2
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.contracts.proto.snapshots import inventory_from_proto, snapshot_to_proto
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.service import Service
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_inventory.core.events import Pull, PullFailed, PullSucceeded
from sluice_inventory.settings import InventorySettings
from sluice_inventory.shell.app import serve_on
from sluice_inventory.shell.puller import Puller

WAIT_S = 60.0
FAST = {
    "pull_interval_s": 0.3,
    "pull_timeout_s": 0.4,
    "stale_after_s": 1.0,
    "retry_first_s": 0.05,
    "retry_max_s": 0.2,
    "tick_s": 0.05,
}


class FakeAgent(agent_pb2_grpc.AgentServiceServicer):
    """Answers with the test's snapshot; `slow` never answers."""

    def __init__(self, found: NodeSnapshot) -> None:
        self.answer = snapshot_to_proto(found)
        self.slow = self.lies = False
        self.asked: list[str] = []
        self.repeated = 0
        """How often it said that nothing has changed; one that `lies` always does."""

    async def GetInventory(self, request, context) -> node_pb2.NodeSnapshot:  # noqa: N802
        self.asked.append(request.node)
        if self.slow:
            await asyncio.Event().wait()
        if self.lies or (request.known_run, request.known_generation) == (
            self.answer.agent_run,
            self.answer.generation,
        ):
            self.repeated += 1
            about = {name: getattr(self.answer, name) for name in ("node", "boot_id", "agent_run", "generation")}
            return node_pb2.NodeSnapshot(**about, unchanged=True)
        return self.answer

    def serve(self, **where):
        """A server with this agent, as a context manager that gives its address."""
        return transport.serve(lambda server: agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server), **where)


class Site:
    """A bus with an inventory on it, and a client of that inventory."""

    def __init__(self, broker: MemoryBroker, client: InventoryServiceStub) -> None:
        self.broker = broker
        self.client = client

    def say(self, message: NodeChanged) -> None:
        self.broker.put(subjects.node(message.node).subject, message)

    def said(self, node: NodeName) -> NodeInventory | None:
        return self.broker.last(subjects.inventory(node).subject)

    async def until_said(self, node: NodeName, wanted) -> NodeInventory:
        return await until(lambda: (found := self.said(node)) is not None and wanted(found) and found)


@asynccontextmanager
async def site(**settings) -> AsyncIterator[Site]:
    (port,) = free_ports(1)
    told = InventorySettings(grpc_address=f"127.0.0.1:{port}", **(FAST | settings))
    broker = MemoryBroker()
    service = Service("inventory", RunId("inv1"), told, SystemClock(), RequestTraces())
    serving = serve_on(broker.bus("inventory"), service, Health(service.clock))
    async with meanwhile(serving), transport.channel(told.grpc_address) as channel:
        async with asyncio.timeout(WAIT_S):
            await channel.channel_ready()
        yield Site(broker, InventoryServiceStub(channel))


@asynccontextmanager
async def fleet(place: Site, *found: NodeSnapshot) -> AsyncIterator[list[FakeAgent]]:
    async with AsyncExitStack() as stack:
        agents = [FakeAgent(one) for one in found]
        for agent, one in zip(agents, found, strict=True):
            place.say(told_by(one, await stack.enter_async_context(agent.serve())))
        for one in found:
            await place.until_said(one.node, lambda said, one=one: said.snapshot == one)
        yield agents


def told_by(found: NodeSnapshot, endpoint: str) -> NodeChanged:
    return news(found.generation, node=found.node, endpoint=endpoint, agent_run=found.agent_run)


def status(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str]:
    return error.code(), error.details() or ""


def busy() -> NodeSnapshot:
    """A node with one A100 that holds a slice of ours at 6, and one that is empty."""
    device = DeviceGrant(container="main", gpu=GpuUuid("GPU-1"), profile="1g.5gb", start=6, size=1)
    booking = booking_of("a_1", "busy", (device,), request="r", owner="uid", name="train")
    instance = InstanceReport(gi_id=7, profile="1g.5gb", start=6, size=1, uuid="MIG-1", allocation=AllocationId("a_1"))
    return snapshot(
        node=NodeName("busy"),
        gpus=(gpu_report(instances=(instance,), creatable={"1g.5gb": 6}), gpu_report(uuid=GpuUuid("GPU-2"), index=1)),
        slices=(SliceReport(booking=booking, revision=1, state="ready", revoked=False),),
    )


# -- what people ask ----------------------------------------------------------------------------------------------


async def test_the_gpus_of_the_fleet_can_be_listed():
    """Every GPU with its counts, and the sums; an empty A100-40GB offers 19."""
    async with site() as place, fleet(place, busy(), snapshot()):
        found = await place.client.ListGpus(inventory_pb2.ListGpusRequest())
        assert [(gpu.node, gpu.uuid, gpu.creatable_total) for gpu in found.gpus] == [
            ("busy", "GPU-1", 6),
            ("busy", "GPU-2", 19),
            ("gpu-1.example.internal", "GPU-1", 19),
        ]
        first = found.gpus[0]
        assert (first.allocated_fraction, first.slices_in_use, dict(first.created)) == (0.125, 1, {"1g.5gb": 1})
        assert dict(found.gpus[1].creatable) == EMPTY_A100
        assert (found.totals.nodes, found.totals.gpus, found.totals.creatable_total) == (2, 3, 44)
        assert first.observed_at.endswith("+00:00")
        some = await place.client.ListGpus(inventory_pb2.ListGpusRequest(nodes=["busy", "unknown"]))
        assert ([gpu.uuid for gpu in some.gpus], some.totals.nodes) == (["GPU-1", "GPU-2"], 1)


async def test_who_holds_what_can_be_asked_by_uuid():
    """The fraction of every device in use, with the owner of each slot."""
    async with site() as place, fleet(place, busy()):
        found = await place.client.GetAllocationMap(inventory_pb2.GetAllocationMapRequest())
        assert sorted(found.gpus) == ["GPU-1", "GPU-2"]
        assert (found.gpus["GPU-2"].fraction_in_use, list(found.gpus["GPU-2"].slots)) == (0.0, [])
        assert found.gpus["GPU-1"].fraction_in_use == 0.125
        (slot,) = found.gpus["GPU-1"].slots
        assert slot.state == inventory_pb2.SLOT_STATE_IN_USE
        assert (slot.start, slot.profile, slot.uuid, slot.request) == (6, "1g.5gb", "MIG-1", "r")
        assert (slot.namespace, slot.name, slot.container) == ("default", "train", "main")


async def test_a_node_that_is_not_there_is_said_so():
    """NOT_FOUND for an unknown node; UNAVAILABLE with the reason for one that never answered."""
    (closed,) = free_ports(1)
    async with site() as place, fleet(place, snapshot()):
        found = await place.client.GetNode(inventory_pb2.GetNodeRequest(node="gpu-1.example.internal"))
        assert inventory_from_proto(found).snapshot == snapshot()
        with pytest.raises(grpc.aio.AioRpcError) as stranger:
            await place.client.GetNode(inventory_pb2.GetNodeRequest(node="unknown"))
        assert status(stranger.value) == (grpc.StatusCode.NOT_FOUND, "no node 'unknown' is known")
        place.say(news(node=NodeName("dead"), endpoint=f"127.0.0.1:{closed}"))
        details = ""
        async with asyncio.timeout(WAIT_S):
            while "UNAVAILABLE" not in details:
                with pytest.raises(grpc.aio.AioRpcError) as dead:
                    await place.client.GetNode(inventory_pb2.GetNodeRequest(node="dead"))
                code, details = status(dead.value)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert details.startswith(f"node 'dead' was never pulled: 127.0.0.1:{closed}: UNAVAILABLE")


async def test_a_watcher_sees_what_is_and_what_comes():
    """The known nodes, the mark, then each change."""
    async with site() as place, fleet(place, snapshot()) as (agent,):
        call = place.client.Watch(inventory_pb2.WatchRequest())
        events = aiter(call)
        async with asyncio.timeout(WAIT_S):
            assert inventory_from_proto((await anext(events)).node).snapshot == snapshot()
            assert (await anext(events)).caught_up
            agent.answer = snapshot_to_proto(snapshot(2))
            changed = inventory_from_proto((await anext(events)).node)
        assert changed.snapshot == snapshot(2)
        call.cancel()


async def test_a_watcher_of_one_node_hears_of_no_other():
    """Names in the request choose."""
    async with site() as place, fleet(place, busy(), snapshot()) as (other, mine):
        call = place.client.Watch(inventory_pb2.WatchRequest(nodes=["gpu-1.example.internal"]))
        events = aiter(call)
        async with asyncio.timeout(WAIT_S):
            assert (await anext(events)).node.snapshot.node == "gpu-1.example.internal"
            assert (await anext(events)).caught_up
            other.answer = snapshot_to_proto(msgspec.structs.replace(busy(), generation=9))
            await place.until_said(NodeName("busy"), lambda said: said.snapshot.generation == 9)
            mine.answer = snapshot_to_proto(snapshot(2))
            assert (await anext(events)).node.snapshot.node == "gpu-1.example.internal"
        call.cancel()


async def test_one_watcher_too_many_is_turned_away():
    """The limit of watchers is reported by a status; one that leaves makes room."""
    async with site(watchers_max=1) as place:
        first = place.client.Watch(inventory_pb2.WatchRequest())
        async with asyncio.timeout(WAIT_S):
            assert (await anext(aiter(first))).caught_up
            with pytest.raises(grpc.aio.AioRpcError) as second:
                await anext(aiter(place.client.Watch(inventory_pb2.WatchRequest())))
            assert status(second.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit of watchers is reached")
            first.cancel()
            let_in = False
            while not let_in:
                third = place.client.Watch(inventory_pb2.WatchRequest())
                try:
                    let_in = (await anext(aiter(third))).caught_up
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)
            third.cancel()


# -- agents that misbehave ----------------------------------------------------------------------------------------


async def test_a_node_that_dies_becomes_stale_and_comes_back():
    """Pulled, dead, stale with a reason, alive under the same address, fresh."""
    async with site() as place, AsyncExitStack() as stack:
        agent = FakeAgent(snapshot())
        endpoint = await stack.enter_async_context(agent.serve())
        place.say(told_by(snapshot(), endpoint))
        await place.until_said(snapshot().node, lambda said: not said.stale)
        await stack.aclose()
        stale = await place.until_said(snapshot().node, lambda said: said.stale)
        assert stale.stale_message.startswith(f"no usable answer for 1 s: {endpoint}: UNAVAILABLE")
        async with agent.serve(address=endpoint):
            await place.until_said(snapshot().node, lambda said: not said.stale)


async def test_a_slow_agent_holds_up_no_other():
    """An agent that never answers makes only its own node stale."""
    async with site() as place, fleet(place, busy(), snapshot()) as (slow, agent):
        slow.slow = True
        stale = await place.until_said(NodeName("busy"), lambda said: said.stale)
        assert "DEADLINE_EXCEEDED" in stale.stale_message
        agent.answer = snapshot_to_proto(snapshot(2))
        assert not (await place.until_said(snapshot().node, lambda said: said.snapshot.generation == 2)).stale


async def test_a_node_is_asked_by_its_name():
    """One process may serve several nodes; an answer for another one is never shown."""
    async with site() as place, fleet(place, snapshot()) as (agent,):
        assert set(agent.asked) == {"gpu-1.example.internal"}
        agent.answer = snapshot_to_proto(busy())
        agent.answer.generation += 1
        stale = await place.until_said(snapshot().node, lambda said: said.stale)
        assert stale.snapshot == snapshot()
        assert "answers for node 'busy'" in stale.stale_message
        assert place.said(NodeName("busy")) is None


async def test_a_wiped_bus_is_told_again():
    """After the streams were lost the node is pulled again, and the new snapshot is published."""
    async with site() as place, fleet(place, snapshot()) as (agent,):
        agent.answer = snapshot_to_proto(snapshot(2))
        wipe(place)
        assert (await place.until_said(snapshot().node, lambda _said: True)).snapshot == snapshot(2)


async def test_a_watcher_that_cannot_keep_up_is_told_to_start_again():
    """More nodes change at once than may be queued: a status, not silence and not memory."""
    async with site(watch_pending_max=1) as place, fleet(place, busy(), snapshot()):
        events = aiter(place.client.Watch(inventory_pb2.WatchRequest()))
        async with asyncio.timeout(WAIT_S):
            while not (await anext(events)).caught_up:
                pass
            wipe(place)
            with pytest.raises(grpc.aio.AioRpcError) as slow:
                [event async for event in events]
        assert status(slow.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the watcher is too slow: watch again")


def wipe(place: Site) -> None:
    before = place.broker.values.incarnation(Stream.BOOK)
    place.broker.wipe()
    place.broker.values.ensure(place.broker.clock.monotonic())
    assert place.broker.values.incarnation(Stream.BOOK) != before
    place.broker.changed()


@pytest.fixture
async def puller() -> AsyncIterator[Puller]:
    """A puller that waits for 0.4 s, closed at the end."""
    made = Puller(SystemClock(), timeout_s=0.4, channels_max=1)
    yield made
    await made.close()


async def test_an_agent_without_the_method_is_a_failed_pull(puller):
    """Another server listens at the agent's address."""
    async with transport.serve(lambda _server: None) as endpoint:
        found = await puller.pull(Pull(snapshot().node, endpoint))
    assert isinstance(found, PullFailed)
    assert "UNIMPLEMENTED" in found.message


async def test_a_snapshot_that_is_known_is_not_sent_again(puller):
    """An idle fleet would cost as much as a busy one; and a change must show at the next pull."""
    agent, node = FakeAgent(snapshot()), snapshot().node
    async with agent.serve() as endpoint:
        first, second = [await puller.pull(Pull(node, endpoint)) for _ in range(2)]
        agent.answer.generation += 1
        third = await puller.pull(Pull(node, endpoint))
        agent.answer.agent_run = "another run"
        fourth = await puller.pull(Pull(node, endpoint))
    assert second.snapshot is first.snapshot
    assert agent.repeated == 1
    assert third.snapshot.generation == first.snapshot.generation + 1
    assert fourth.snapshot.agent_run == "another run"


async def test_an_agent_cannot_repeat_what_it_has_not_told(puller):
    """Its node would be shown without GPUs, or with those of another generation."""
    agent, node = FakeAgent(snapshot()), snapshot().node
    async with agent.serve() as endpoint:
        agent.lies = True
        untold = await puller.pull(Pull(node, endpoint))
        agent.lies = False
        assert isinstance(await puller.pull(Pull(node, endpoint)), PullSucceeded)
        agent.lies, agent.answer.generation = True, agent.answer.generation + 1
        other = await puller.pull(Pull(node, endpoint))
    for found in (untold, other):
        assert isinstance(found, PullFailed)
        assert "unchanged, which is not known here" in found.message


async def test_channels_do_not_pile_up(puller):
    """With room for one channel, pulling two nodes in turn works and leaves one open."""
    async with FakeAgent(snapshot()).serve() as one, FakeAgent(busy()).serve() as two:
        for _ in range(3):
            assert isinstance(await puller.pull(Pull(snapshot().node, one)), PullSucceeded)
            assert isinstance(await puller.pull(Pull(NodeName("busy"), two)), PullSucceeded)
        assert list(puller._channels) == ["busy"]
