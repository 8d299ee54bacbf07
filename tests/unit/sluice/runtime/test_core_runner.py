"""Readings, results and ticks reach the core in order; its instructions are done, or the service ends."""

import asyncio
from dataclasses import dataclass

import pytest

from sluice.contracts.bus.events import Entry, LastRead, ReadAgain, ReadLast, Stream, Ticked, WriteAccepted
from sluice.contracts.bus.trace_headers import root_traceparent
from sluice.contracts.ids import OperationId
from sluice.runtime import core_runner
from sluice.runtime.bus import BusError
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import SLICE_S, Executor
from sluice.runtime.tracing.request_traces import RequestTraces

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass(frozen=True, slots=True)
class Make:
    gpu: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Unmake:
    gpu: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    number: int


async def test_a_write_is_done_and_its_answer_comes_back(core, bus, running, make_started, make_write):
    core.rules = lambda event: [make_write(7)] if event == make_started(1) else []
    async with running():
        bus.batches_of((Stream.BOOK, ())).put_nowait([make_started(1)])
        await core.hears(lambda event: event == WriteAccepted(OperationId("op-7"), 1))
    assert [written for written, _ in bus.written] == [make_write(7)]


async def test_a_word_carries_the_trace_of_its_request(core, bus, running, make_started, make_write):
    """The whole story of a request can be followed from service to service."""
    traces = RequestTraces()
    traces.remember("r1", {"traceparent": TRACEPARENT})
    core.rules = lambda event: [make_write(1), make_write(2, request="r2")] if event == make_started(1) else []
    async with running(traces=traces):
        bus.batches_of((Stream.BOOK, ())).put_nowait([make_started(1)])
        await core.hears(lambda event: isinstance(event, WriteAccepted), count=2)
    assert [headers["traceparent"] for _, headers in bus.written] == [TRACEPARENT, root_traceparent("r2")]


async def test_reading_again_starts_the_readers_anew(core, bus, running, make_started):
    core.rules = lambda event: [ReadAgain(Stream.BOOK)] if event == make_started(1) else []
    async with running():
        bus.batches_of((Stream.BOOK, ())).put_nowait([make_started(1)])
        await core.hears(lambda event: event == make_started(1))
    assert bus.read_anew == [Stream.BOOK]


async def test_a_single_read_is_asked_until_it_is_answered(core, bus, running):
    """An agent whose broker was briefly away still gets its guard."""
    entry = Entry("sluice.node.a", 5, OperationId("op"), None)
    bus.silent_reads, bus.values["sluice.node.a"] = 3, entry
    core.rules = lambda event: [ReadLast(Stream.STATE, "sluice.node.a")] if isinstance(event, Made) else []
    async with running() as runner:
        await runner.offer(Made(0))
        await core.hears(lambda event: event == LastRead("sluice.node.a", entry))
    assert bus.silent_reads == 0


async def test_own_instructions_are_carried_out_and_reported(core, bus, running):
    """A core gets the result of each of its instructions; some have none."""

    async def make(instruction: Make) -> Made | None:
        return Made(instruction.number) if instruction.number else None

    core.rules = lambda event: [Make("a", 0), Make("a", 1)] if event == Made(100) else []
    async with running(execute={Make: make}) as runner:
        await runner.offer(Made(100))
        await core.hears(lambda event: event == Made(1))
    assert core.heard == [Made(100), Made(1)]


async def test_what_waits_for_nothing_is_done_before_anybody_else_has_a_turn(
    core, bus, running, make_started, monkeypatch
):
    """Of many nodes in one process each goes on as far as it can: none waits for a turn of all others."""
    monkeypatch.setattr(core_runner, "SLICE_S", 60.0)  # however slow the machine is
    turns = []

    async def run(make):
        turns.append(("waited", make.number))
        return Made(make.number)

    def at_once(make):
        def do():
            turns.append(("at once", make.number))
            return Made(make.number)

        return do if make.number % 2 else None

    def rules(event):
        if event == make_started(1):
            asyncio.get_running_loop().call_soon(turns.append, "others")
            return [Make("g1", 1)]
        return (
            [Make("g1", event.number + (2 if event.number < 5 else 1))] if event in {Made(1), Made(3), Made(5)} else []
        )

    core.rules = rules
    async with running(execute={Make: Executor(run, at_once=at_once)}):
        bus.batches_of((Stream.BOOK, ())).put_nowait([make_started(1)])
        await core.hears(lambda event: event == Made(6))
    assert turns == [("at once", 1), ("at once", 3), ("at once", 5), "others", ("waited", 6)]


async def test_the_core_handles_nothing_while_its_state_is_read(core, bus, running):
    """What is read over several turns of the event loop is of one moment; afterwards the core goes on."""
    async with running() as runner:
        async with runner.turn:
            await runner.offer(Made(1))
            for _ in range(20):
                await asyncio.sleep(0)
            assert core.heard == []
        await core.hears(lambda event: event == Made(1))


async def test_what_fails_at_once_ends_the_service(core, run_until_failure):
    def at_once(_make):
        def do():
            raise OSError("the disk is gone")

        return do

    core.rules = lambda _event: [Make("g1")]
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone"))):
        await run_until_failure(Made(1), execute={Make: Executor(_never, at_once=at_once)})


async def _never(_make):
    raise AssertionError("it waits for nothing")


async def test_work_on_one_gpu_is_never_done_at_the_same_time(core, bus, running):
    """Steps on one device keep their order, other devices do not wait for them."""
    began: list[object] = []
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def work(instruction: Make | Unmake) -> Made:
        began.append(instruction)
        await gates[instruction.gpu].wait()
        return Made(instruction.number)

    executor = Executor(work, key=lambda instruction: instruction.gpu)
    orders = [Make("a", 1), Unmake("a", 2), Make("b", 3)]
    core.rules = lambda event: orders if event == Made(100) else []
    async with running(execute={Make: executor, Unmake: executor}) as runner:
        await runner.offer(Made(100))
        gates["b"].set()
        await core.hears(lambda event: event == Made(3))
        assert began == [Make("a", 1), Make("b", 3)]
        gates["a"].set()
        await core.hears(lambda event: event == Made(2))
    assert began == [Make("a", 1), Make("b", 3), Unmake("a", 2)]


async def test_only_so_many_of_one_instruction_run_at_once(core, bus, running):
    """A thousand pulls at start do not open a thousand connections."""
    at_once = most = 0

    async def pull(instruction: Make) -> Made:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return Made(instruction.number)

    core.rules = lambda event: [Make("a", number) for number in range(50)] if event == Made(100) else []
    async with running(execute={Make: Executor(pull, limit=4)}) as runner:
        await runner.offer(Made(100))
        await core.hears(lambda event: isinstance(event, Made) and event.number < 100, count=50)
    assert most == 4


async def test_an_answer_never_overtakes_the_reading_that_was_asked_for_before_it(core, bus, running, make_started):
    """A landed write would seem lost: the snapshot was older than the refusal."""
    release = asyncio.Event()

    async def answer(_instruction: Make) -> Made:
        await release.wait()
        return Made(2)

    long_batch = [make_started(number) for number in range(2000)]
    core.rules = lambda event: [Make("a")] if event == Made(1) else []
    async with running(execute={Make: answer}) as runner:
        await runner.offer(Made(1))
        await core.hears(lambda event: event == Made(1))
        bus.batches_of((Stream.BOOK, ())).put_nowait(long_batch)
        # until the batch is in the inbox, so that the server may be asked for the next one
        while bus.asked.count((Stream.BOOK, ())) < 2:  # noqa: ASYNC110 - the fake bus has no bell
            await asyncio.sleep(0)
        release.set()
        await core.hears(lambda event: event == Made(2))
    assert core.heard == [Made(1), *long_batch, Made(2)]


async def test_time_passes_for_the_core_in_the_middle_of_a_giant_batch(core, bus, running, make_started):
    """100,000 last values at start do not stop time-outs from being noticed, nor connections from answering."""

    class Slow(SystemClock):
        """Each look at it costs a millisecond, each wait one turn of the event loop."""

        elapsed_s = 0.0

        def monotonic(self) -> float:
            self.elapsed_s += 0.001
            return self.elapsed_s

        async def sleep(self, duration_s: float) -> None:
            await asyncio.sleep(0)

    batch = [make_started(number) for number in range(1000)]
    async with running(clock=Slow()):
        bus.batches_of((Stream.BOOK, ())).put_nowait(batch)
        await core.hears(lambda event: event == batch[-1])
    ticks = sum(isinstance(event, Ticked) for event in core.heard[: core.heard.index(batch[-1])])
    assert ticks >= 1000 * 0.001 / SLICE_S - 2
    assert [event for event in core.heard if not isinstance(event, Ticked)] == batch


async def test_a_calm_core_is_ticked_now_and_then_and_when_an_event_ends_its_calm(core, running, make_started):
    """What is periodic would stop, or what an event began would wait for seconds."""
    async with running(tick_s=1e-3, is_calm=lambda: True, calm_tick_s=5e-3):
        await core.hears(lambda event: isinstance(event, Ticked), count=2)
    core.heard.clear()
    async with running(tick_s=1e-3, is_calm=lambda: len(core.heard) < 3, calm_tick_s=3600.0) as runner:
        for number in range(3):
            await asyncio.sleep(0.01)
            await runner.offer(make_started(number))
        await core.hears(lambda event: isinstance(event, Ticked))
    assert core.heard[:4] == [*map(make_started, range(3)), Ticked()]


async def test_unfinished_work_goes_on_behind_all_events_that_wait(core, running, make_started):
    """Freed places would be offered to a long queue only when something else happens."""
    left = [make_started(number) for number in (8, 9)]
    async with running(go_on=lambda: left.pop() if core.heard and left else None) as runner:
        runner._inbox.add([make_started(number) for number in range(3)])
        await core.hears(lambda event: event == make_started(8))
    assert core.heard == [make_started(number) for number in (0, 1, 2, 9, 8)]


async def test_readers_wait_while_the_core_is_behind(core, bus, running, make_started):
    async with running(events_max=100) as runner:
        runner._inbox.add([make_started(0)] * 100)
        await runner.offer(make_started(1))
        await core.hears(lambda event: event == make_started(1))
    assert core.heard == [make_started(0)] * 100 + [make_started(1)]


async def test_a_full_inbox_makes_producers_wait(core, bus, running, make_started):
    async with running(events_max=10) as runner:
        runner._inbox.add([make_started(0)] * 10)
        coroutine = runner.offer(make_started(1))
        coroutine.send(None)
        assert len(runner._inbox) == 10
        coroutine.close()


async def test_a_failing_executor_ends_the_service(core, run_until_failure):
    """A core that misses an answer must not go on: the supervisor restarts the service."""

    async def broken(_instruction: Make) -> None:
        raise OSError("disk full")

    core.rules = lambda event: [Make("a")]
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="disk full")):
        await run_until_failure(Made(1), execute={Make: broken})


async def test_a_denied_write_ends_the_service(core, bus, run_until_failure, make_write):
    """Missing rights are reported loudly, not retried without end."""
    bus.failure = BusError("no permission to write sluice.waiting.r1")
    core.rules = lambda event: [make_write()]
    with pytest.RaisesGroup(BusError):
        await run_until_failure(Made(1))


async def test_a_failing_core_ends_the_service(core, run_until_failure):
    def rules(event):
        raise ArithmeticError("broken invariant")

    core.rules = rules
    with pytest.RaisesGroup(ArithmeticError, flatten_subgroups=True):
        await run_until_failure(Made(1))


async def test_an_instruction_without_executor_ends_the_service(core, run_until_failure):
    """A missing executor fails at the first instruction instead of dropping it."""
    core.rules = lambda event: [Make("a")]
    missing = pytest.RaisesExc(LookupError, match="test has no executor for Make")
    with pytest.RaisesGroup(missing, flatten_subgroups=True):
        await run_until_failure(Made(1))


async def test_a_reader_that_ends_ends_the_service(bus, run_until_failure, monkeypatch):
    async def nothing(_which):
        return
        yield

    monkeypatch.setattr(bus, "_reading", nothing)
    ended = pytest.RaisesExc(RuntimeError, match="a reader of test has ended")
    with pytest.RaisesGroup(ended, flatten_subgroups=True):
        await run_until_failure(Made(1))


async def test_a_write_under_way_is_finished_when_the_service_stops(core, bus, running, make_write):
    """An orderly stop leaves as few unknown writes as possible."""
    bus.hold_writes = asyncio.Event()
    core.rules = lambda event: [make_write()] if event == Made(1) else []
    async with running(drain_s=5.0) as runner:
        await runner.offer(Made(1))
        await core.hears(lambda event: event == Made(1))
        (under_way,) = runner._under_way
        asyncio.get_running_loop().call_later(0.05, bus.hold_writes.set)
    assert under_way.done()
    assert not under_way.cancelled()
    assert bus.closed_readers == [(Stream.BOOK, ())]


async def test_a_stop_does_not_wait_for_ever(core, bus, running, make_write):
    """A write that never ends is given up after the drain time."""
    bus.hold_writes = asyncio.Event()
    core.rules = lambda event: [make_write()] if event == Made(1) else []
    async with asyncio.timeout(5):
        async with running(drain_s=0.05) as runner:
            await runner.offer(Made(1))
            await core.hears(lambda event: event == Made(1))
            (under_way,) = runner._under_way
    assert under_way.cancelled()
