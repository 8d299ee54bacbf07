"""Shares resized over real gRPC: the core's decisions cross the wire, and no call waits without end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest
from factories.broker.memory_bus import MemoryBroker
from factories.scheduling.allocator import Bench, claim, gpu_report, snapshot, working_allocator

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import NodeName, RunId
from sluice.contracts.messages import Amounts, Grant, QuotaSet
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.runtime.grpc import transport
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust, LeaseChanged
from sluice_allocator.shell.server import AllocatorServer, ShareResizer

NODE = NodeName("node-a")


def bench_with_share(memory_mib: int = 4000) -> Bench:
    """An allocator with one bound share on a GPU without MIG."""
    bench = working_allocator()
    gpus = (gpu_report("node-a", 0, mig=False),)
    bench.add_node(snapshot("node-a", gpus, modes=("exclusive", "mps", "fractional")))
    bench.bound("p1", claim(profile=None, modes=("mps",), memory_mib=memory_mib, uid=1000))
    bench.said.clear()
    return bench


class Shell:
    """The runner's part: events into the core, answers to callers. Writes land when the test says so."""

    def __init__(self, bench: Bench, *, within_s: float = 10.0) -> None:
        self.bench = bench
        self.adjuster = ShareResizer(within_s=within_s)
        self.lands = True
        self.waiting: list[Write] = []

    async def offer(self, event: AdjustAsked) -> None:
        await self.carry_out(self.bench.handle(event))

    async def carry_out(self, instructions: list) -> None:
        for each in instructions:
            if isinstance(each, AnswerAdjust):
                await self.adjuster.answer(each)
            elif isinstance(each, Write) and self.lands:
                await self.carry_out(self.bench.land(each))
            elif isinstance(each, Write):
                self.waiting.append(each)


@asynccontextmanager
async def served(shell: Shell) -> AsyncIterator[AllocatorServiceStub]:
    """A client of the allocator behind `shell`."""
    change = partial(shell.adjuster.ask, offer=shell.offer)
    bus, turn = MemoryBroker().bus("allocator"), asyncio.Lock()
    server = AllocatorServer(shell.bench.allocator, bus, RunId("r1"), change, turn)
    async with transport.serve(server.register) as address, transport.channel(address) as channel:
        yield AllocatorServiceStub(channel)


async def test_a_change_is_booked_and_answered_per_field():
    """The whole decision crosses the wire, and the order is in the ledger by then."""
    shell = Shell(bench_with_share())
    async with served(shell) as client:
        answer = await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000))
    done = answer.adjusted
    assert answer.WhichOneof("outcome") == "adjusted"
    assert (done.node, done.container, done.revision, done.dry_run) == ("node-a", "main", 2, False)
    assert [(f.field, f.before, f.after, f.effect) for f in done.fields] == [
        ("memory_mib", 4000, 9000, pb.ADJUST_EFFECT_NEXT_PROCESS_START),
        ("sm_partition", 0, 0, pb.ADJUST_EFFECT_UNCHANGED),
        ("quota_request_permille", 1000, 1000, pb.ADJUST_EFFECT_UNCHANGED),
        ("quota_limit_permille", 1000, 1000, pb.ADJUST_EFFECT_UNCHANGED),
    ]
    (entry,) = [each for each in shell.bench.allocator.ctx.facts.ledger.values() if isinstance(each, Grant)]
    assert (entry.revision, entry.booking.devices[0].share.memory_mib) == (2, 9000)
    assert answer.decided_by == "r1"


async def test_a_dry_run_goes_nowhere_near_the_ledger():
    """A dry run would change a running pod."""
    shell = Shell(bench_with_share())
    async with served(shell) as client:
        answer = await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000, dry_run=True))
    assert (answer.adjusted.revision, answer.adjusted.dry_run) == (2, True)
    assert not any(isinstance(each, Write) for each in shell.bench.said)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_refusal_carries_what_would_fit(dry_run):
    """A program that scales needs the number, not the sentence."""
    shell = Shell(bench_with_share())
    quota = QuotaSet(namespace="default", total=Amounts(memory_mib=6000))
    shell.bench.observe(subjects.quota("default"), quota)
    async with served(shell) as client:
        too_much = await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=50000, dry_run=dry_run))
        beyond = await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000, dry_run=dry_run))
        missing = await client.Adjust(pb.AdjustRequest(request="p9", memory_mib=9000, dry_run=dry_run))
    assert too_much.refused.reason == pb.ADJUST_REFUSAL_CAPACITY_EXCEEDED
    assert beyond.refused.reason == pb.ADJUST_REFUSAL_QUOTA_EXCEEDED
    assert [(each.field, each.value) for each in beyond.refused.most] == [("memory_mib", 6000)]
    assert missing.refused.reason == pb.ADJUST_REFUSAL_NOT_FOUND


async def test_a_ledger_that_does_not_answer_is_told_as_not_known():
    """Both answers would be guesses; asking again finds out."""
    shell = Shell(bench_with_share(), within_s=0.2)
    shell.lands = False
    async with served(shell) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "whether this was booked is unknown" in (caught.value.details() or "")
        shell.lands = True
        await shell.carry_out(shell.waiting)  # it lands late, after the call has ended
        again = await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000))
    assert (again.refused.reason, again.refused.under_way) == (pb.ADJUST_REFUSAL_UNCHANGED, True)


async def test_who_stands_by_changes_nothing():
    """Two allocators would decide at once."""
    shell = Shell(bench_with_share())
    shell.bench.handle(LeaseChanged(held=False))
    async with served(shell) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.Adjust(pb.AdjustRequest(request="p1", memory_mib=9000))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_many_at_once_each_get_their_own_answer():
    """Answers would be mixed up, or a caller would wait without end."""
    shell = Shell(bench_with_share())
    async with served(shell) as client:
        sizes = range(5000, 5020)
        questions = (pb.AdjustRequest(request="p1", memory_mib=size) for size in sizes)
        answers = await asyncio.gather(*map(client.Adjust, questions))
    done = [answer.adjusted.fields[0].after for answer in answers if answer.WhichOneof("outcome") == "adjusted"]
    assert sorted(done) == list(sizes)
