"""The allocator's answers: real gRPC from real clients, on the memory bus."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.scheduling.allocator import Bench, claim, gpu_report, snapshot, working_allocator
from factories.waiting import meanwhile, until

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.runtime.clock import SystemClock
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.health import Health
from sluice.runtime.service import Service
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.resize.pending import Change, Outcome
from sluice_allocator.settings import AllocatorSettings
from sluice_allocator.shell import server as shell_server
from sluice_allocator.shell.app import serve_on
from sluice_allocator.shell.server import AllocatorServer

POD = pb.SimulateRequest(
    namespace="research",
    name="p1",
    annotations={"sluice.dev/profile": "3g.20gb"},
    containers=[pb.ContainerAsk(name="main")],
)


async def change_nothing(change: Change) -> Outcome:
    raise TimeoutError(change)


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[AllocatorServiceStub]:
    """A client of an allocator that the test drives by hand."""
    bus, turn = MemoryBroker().bus("allocator"), asyncio.Lock()
    server = AllocatorServer(bench.allocator, bus, RunId("r1"), change_nothing, turn)
    async with transport.serve(server.register) as address, transport.channel(address) as channel:
        yield AllocatorServiceStub(channel)


def bench_with(*gpus: int) -> Bench:
    """An allocator with one node of so many A100-40GB per number."""
    bench = working_allocator()
    for number, count in enumerate(gpus):
        name = f"node-{number}"
        bench.add_node(snapshot(name, tuple(gpu_report(name, index) for index in range(count))))
    return bench


async def refused_with(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_client_is_told_place_devices_and_what_is_left():
    """The whole answer crosses the wire."""
    async with served(bench_with(1)) as client:
        answer = await client.Simulate(POD)
    assert answer.WhichOneof("outcome") == "bound"
    (device,), (left,) = answer.bound.devices, answer.bound.left
    assert (answer.bound.node, device.profile, device.start, device.size) == ("node-0", "3g.20gb", 4, 4)
    assert (device.memory_mib, device.sm_percent, device.HasField("share")) == (20096, 42, False)
    assert (sum(left.creatable_before.values()), sum(left.creatable_after.values())) == (19, 11)
    assert answer.decided_by == "r1"


async def test_a_client_is_told_why_a_pod_would_wait():
    """Filter by filter, with counts."""
    bench = bench_with(2)
    for name in ("a", "b"):
        bench.bound(name, claim(profile="7g.40gb"))
    async with served(bench) as client:
        answer = await client.Simulate(POD)
    assert answer.WhichOneof("outcome") == "waits"
    (step,) = answer.waits.steps
    assert [(step.filter, each.reason, each.count) for each in step.reasons] == [("room", "GpuLayoutFull", 2)]


async def test_a_client_is_told_what_is_wrong_with_a_pod():
    """A refusal is an answer, not an error of the call."""
    wrong = pb.SimulateRequest(annotations={"sluice.dev/gpus": "-1"}, containers=[pb.ContainerAsk(name="main")])
    async with served(bench_with(1)) as client:
        answer = await client.Simulate(wrong)
    assert answer.WhichOneof("outcome") == "refused"
    assert (answer.refused.field, answer.refused.value) == ("sluice.dev/gpus", "-1")


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ({"containers": []}, "containers: 0"),
        ({"containers": [{"name": "c"}] * 1001}, "containers: 1001"),
        ({"host": {"affinity": [{"expressions": [{"key": "a", "operator": "Near"}]}]}}, "'Near'"),
        ({"host": {"tolerations": [{"key": "a", "operator": "Perhaps"}]}}, "'Perhaps'"),
        ({"host": {"room": {"cpu_milli": -1}}}, "cpu_milli = -1"),  # it would fit everywhere
        ({"next": [POD] * 200}, "next: 200 pods; at most 199"),
    ],
    ids=["no container", "too many", "operator", "toleration", "negative amount", "too many pods"],
)
async def test_a_question_that_no_pod_can_be_behind_names_its_field(question, what):
    """INVALID_ARGUMENT, with a sentence."""
    async with served(bench_with(1)) as client:
        asked = pb.SimulateRequest(**({"containers": [{"name": "c"}]} | question))
        code, details = await refused_with(client.Simulate(asked))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert what in details


@pytest.mark.parametrize("given_up", [False, True], ids=["awaited", "given up"])
async def test_a_long_question_lets_the_process_answer_probes_and_nothing_be_decided(monkeypatch, given_up):
    """A holder of the lease that is silent for two seconds is replaced; facts that change meanwhile would mislead."""
    bench, turn = bench_with(2), asyncio.Lock()
    server = AllocatorServer(bench.allocator, MemoryBroker().bus("allocator"), RunId("r1"), change_nothing, turn)
    question = pb.SimulateRequest(next=[POD] * 5)
    question.MergeFrom(POD)
    at_once = await server.Simulate(question, None)
    assert [each.WhichOneof("outcome") for each in (at_once, *at_once.next)] == ["bound"] * 4 + ["waits"] * 2
    monkeypatch.setattr(shell_server, "SLICE_S", -1.0)
    asking, turns = asyncio.create_task(server.Simulate(question, None)), 0
    await asyncio.sleep(0)
    while turn.locked():
        turns += 1
        if given_up and turns == 3:
            asking.cancel()
        await asyncio.sleep(0)
    assert turns >= (3 if given_up else len(question.next))
    assert bench.allocator.ctx.cluster.booked() == {}
    if given_up:
        with pytest.raises(asyncio.CancelledError):
            await asking
    else:
        assert await asking == at_once


async def test_between_any_two_questions_the_core_has_its_turn(monkeypatch):
    """Otherwise clients that ask again and again would let it decide nothing, and a probe would find it stuck."""
    bench, turn, order = bench_with(1), asyncio.Lock(), []
    server = AllocatorServer(bench.allocator, MemoryBroker().bus("allocator"), RunId("r1"), change_nothing, turn)
    monkeypatch.setattr(shell_server, "SLICE_S", -1.0)

    async def ask():
        await server.Simulate(POD, None)
        order.append("question")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(ask())
        await asyncio.sleep(0)
        while order.count("question") < 5:
            async with turn:
                order.append("core")
            await asyncio.sleep(0)
    assert ("question", "question") not in itertools.pairwise(order)


async def test_a_client_is_told_how_a_request_stands():
    """By its id; an unknown one is NOT_FOUND, and a missing id is an error."""
    bench = bench_with(1)
    grant = bench.bound("p1", claim(profile="2g.10gb"))
    async with served(bench) as client:
        answer = await client.Explain(pb.ExplainRequest(request="p1"))
        code, _ = await refused_with(client.Explain(pb.ExplainRequest(request="unknown")))
        empty, _ = await refused_with(client.Explain(pb.ExplainRequest()))
    assert (answer.state, answer.node) == (pb.REQUEST_STATE_BOUND, "node-0")
    assert (answer.allocation, answer.devices[0].profile) == (grant.booking.allocation, "2g.10gb")
    assert (code, empty) == (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


async def test_who_stands_by_names_who_works():
    """A standby does not know the leader's decisions, so it does not answer about pods."""
    bench = bench_with(1)
    bench.handle(LeaseChanged(held=False))
    broker = MemoryBroker()
    server = AllocatorServer(bench.allocator, broker.bus("allocator"), RunId("r1"), change_nothing, asyncio.Lock())
    async with transport.serve(server.register) as address, transport.channel(address) as channel:
        client = AllocatorServiceStub(channel)
        _, no_leader = await refused_with(client.Simulate(POD))
        held = LeaseHeld(role="allocator", owner=RunId("r2"), endpoint="10.0.0.7:9420")
        broker.put(subjects.lease("allocator").subject, held)
        code, with_holder = await refused_with(client.Explain(pb.ExplainRequest(request="p1")))
    assert "no allocator holds the lease" in no_leader
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "r2 holds the lease at 10.0.0.7:9420" in with_holder


async def test_the_lease_says_where_its_holder_answers():
    """Readers of the bus can call it; when the holder ends, the lease has no endpoint."""
    broker = MemoryBroker()
    bus = broker.bus("allocator")
    service = Service("allocator", RunId("r1"), AllocatorSettings(tick_s=0.05), SystemClock(), RequestTraces())
    subject = subjects.lease("allocator").subject
    async with meanwhile(serve_on(bus, service, Health(service.clock))):
        lease = await until(lambda: broker.last(subject))
        assert isinstance(lease, LeaseHeld)
        async with transport.channel(lease.endpoint) as channel:
            client = AllocatorServiceStub(channel)

            async def is_not_found() -> bool:
                code, details = await refused_with(client.Explain(pb.ExplainRequest(request="unknown")))
                assert code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}, details
                return code is grpc.StatusCode.NOT_FOUND  # first it is still loading the bus

            await until(is_not_found)
    lease = broker.last(subject)
    assert isinstance(lease, LeaseHeld)
    assert (lease.owner, lease.endpoint) == ("", "")
    await bus.close()
