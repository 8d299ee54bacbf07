"""The gRPC service: answers questions from the core's facts, and passes changes of shares to the core. Who answers has
the core's turn: it handles no event meanwhile, so its facts are consistent. No question copies the fleet."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import grpc

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import LeaseHeld
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceServicer, add_AllocatorServiceServicer_to_server
from sluice.runtime.bus import Bus
from sluice.runtime.core_runner import SLICE_S
from sluice.runtime.grpc.security import abort
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.explain.status import how_it_stands, simulate_together
from sluice_allocator.core.moves.defragment import consolidate
from sluice_allocator.core.resize.pending import Change, Outcome
from sluice_allocator.core.resize.resize import adjust
from sluice_allocator.shell import rpc_answers
from sluice_allocator.shell.rpc_answers import QuestionError, change_asked, pods_asked

ANSWER_WITHIN_S = 10.0  # a write settles within tens of milliseconds; a broker that is away may be away for long


class ShareResizer:
    """Pending callers, by number."""

    def __init__(self, *, within_s: float = ANSWER_WITHIN_S) -> None:
        self._within_s = within_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}

    async def ask(self, change: Change, *, offer: Callable[[AdjustAsked], Awaitable[None]]) -> Outcome:
        """The outcome of a change; `offer` gives the core an event. Raises TimeoutError when it is late."""
        number = next(self._numbers)
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            async with asyncio.timeout(self._within_s):
                await offer(AdjustAsked(number, change))
                return await waiting
        finally:
            del self._waiting[number]

    async def answer(self, answer: AnswerAdjust) -> None:
        """Pass the core's answer to its caller, if that still waits."""
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)


ROLE = "allocator"  # the lease's role
ChangeShares = Callable[[Change], Awaitable[Outcome]]  # raises TimeoutError when the outcome is not known in time
ID_CHARACTERS_MAX = 512  # the longest id of a request


class AllocatorServer(AllocatorServiceServicer):
    """`sluice.v1.AllocatorService` over one core."""

    def __init__(self, core: Allocator, bus: Bus, run: RunId, change_shares: ChangeShares, turn: asyncio.Lock) -> None:
        """Read `core` with its `turn`; change shares through `change_shares`; the bus tells who holds the lease."""
        self._core, self._bus, self._run, self._change_shares, self._turn = core, bus, run, change_shares, turn
        self._one_at_a_time = asyncio.Lock()  # so the core has its turn after each question, however many wait

    def register(self, server: grpc.aio.Server) -> None:
        add_AllocatorServiceServicer_to_server(self, server)

    async def Simulate(self, request: pb.SimulateRequest, context: Any) -> pb.SimulateResponse:  # noqa: N802
        try:
            pods = pods_asked(request)
        except QuestionError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        answers, began = [], time.monotonic()
        async with self._when_working(context) as ctx:
            with closing(simulate_together(ctx, pods)) as found:
                for each in found:
                    answers.append(rpc_answers.simulated(each))
                    if time.monotonic() - began > SLICE_S:  # the loop answers probes and the broker meanwhile
                        await asyncio.sleep(0)
                        began = time.monotonic()
            waiting, devices_max = len(ctx.queue), ctx.rules.max_gpus_per_node
            return rpc_answers.simulated_together(answers, self._run, waiting=waiting, devices_max=devices_max)

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:  # noqa: N802
        name = request.request
        if not name or len(name) > ID_CHARACTERS_MAX:
            why = f"request: {len(name)} characters; a request's id has 1 to {ID_CHARACTERS_MAX}"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        async with self._when_working(context) as ctx:
            standing = how_it_stands(ctx, RequestId(name))
        if standing is None:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"there is no request {name!r}")
        return rpc_answers.explained(name, standing, self._run)

    async def Adjust(self, request: pb.AdjustRequest, context: Any) -> pb.AdjustResponse:  # noqa: N802
        """Resize the shares of a bound pod, or return what a resize would come to."""
        change = change_asked(request)
        async with self._when_working(context) as ctx:
            if request.dry_run:
                return rpc_answers.adjusted(adjust(ctx, change), self._run, dry_run=True)
        try:
            outcome = await self._change_shares(change)
        except TimeoutError:
            why = "the ledger did not answer in time, so whether this was booked is unknown; retry"
            await abort(context, grpc.StatusCode.UNAVAILABLE, why)
        return rpc_answers.adjusted(outcome, self._run, dry_run=False)

    async def Consolidate(self, request: pb.ConsolidateRequest, context: Any) -> pb.ConsolidateResponse:  # noqa: N802
        """The nodes that would be empty if movable pods started again elsewhere."""
        del request  # it has no fields
        async with self._when_working(context) as ctx:
            return rpc_answers.consolidated(consolidate(ctx), self._run)

    @asynccontextmanager
    async def _when_working(self, context: Any) -> AsyncGenerator[SchedulerContext]:
        """Its turn, unless this allocator is not active and loaded (aborts): its answers would be incomplete."""
        ctx = self._core.ctx
        async with self._one_at_a_time, self._turn:
            if not ctx.outbox.paused and ctx.facts.settled:
                yield ctx
                return
        why = await self._who_works() if ctx.outbox.paused else "this allocator is still loading the bus; retry"
        await abort(context, grpc.StatusCode.UNAVAILABLE, why)

    async def _who_works(self) -> str:
        try:
            entry = await self._bus.last(Stream.STATE, subjects.lease(ROLE).subject)
        except TimeoutError:
            return "this allocator is on standby, and the bus does not say which one is active; retry"
        held = entry.message if entry is not None else None
        if not isinstance(held, LeaseHeld) or not held.owner:
            return "this allocator is on standby, and no allocator holds the lease"
        where = f" at {held.endpoint}" if held.endpoint else ""
        return f"this allocator is on standby; {held.owner} holds the lease{where}"
