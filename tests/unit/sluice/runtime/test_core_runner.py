"""Readings, results and ticks reach the core in order; its instructions are done, or the service ends."""

import asyncio
from dataclasses import dataclass

import pytest
from factories.words import write_of

from sluice.contracts.bus import events
from sluice.contracts.bus.subjects import waiting
from sluice.contracts.bus.trace_headers import root_traceparent
from sluice.contracts.ids import Incarnation, OperationId, RequestId
from sluice.contracts.messages import WaitOver
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


class Unmake(Make): ...


@dataclass(frozen=True, slots=True)
class Made:
    number: int


def write(number: int = 1, request: str = "r1") -> events.Write:
    word = WaitOver(request=RequestId(request))
    return write_of(waiting(word.request), word, None, f"op-{number}", request=request)


def started(number: int) -> events.ReadingStarted:
    """A reading begins, recognisable by its incarnation."""
    return events.ReadingStarted(events.Stream.BOOK, Incarnation(str(number)))


FIRST = started(1)


async def test_a_write_is_done_and_its_answer_comes_back(core, bus, running):
    core.rules = lambda event: [write(7)] if event == FIRST else []
    async with running():
        bus.batches.put_nowait([FIRST])
        await core.hears(lambda event: event == events.WriteAccepted(OperationId("op-7"), 1))
    assert [written for written, _ in bus.written] == [write(7)]


async def test_a_word_carries_the_trace_of_its_request(core, bus, running):
    """The whole course of a request can be followed from service to service."""
    traces = RequestTraces()
    traces.remember("r1", {"traceparent": TRACEPARENT})
    core.rules = lambda event: [write(1), write(2, request="r2")] if event == FIRST else []
    async with running(traces=traces):
        bus.batches.put_nowait([FIRST])
        await core.hears(lambda event: isinstance(event, events.WriteAccepted), count=2)
    assert [headers["traceparent"] for _, headers in bus.written] == [TRACEPARENT, root_traceparent("r2")]


async def test_reading_again_restarts_the_readers(core, bus, running):
    core.rules = lambda event: [events.ReadAgain(events.Stream.BOOK)] if event == FIRST else []
    async with running():
        bus.batches.put_nowait([FIRST])
        await core.hears(lambda event: event == FIRST)
    assert bus.read_anew == [events.Stream.BOOK]


async def test_a_single_read_is_asked_until_it_is_answered(core, bus, running):
    """An agent whose broker was briefly away still gets its guard."""
    entry = events.Entry("sluice.node.a", 5, OperationId("op"), None)
    bus.silent_reads, bus.values["sluice.node.a"] = 3, entry
    core.rules = lambda event: [events.ReadLast(events.Stream.STATE, "sluice.node.a")] if event == Made(0) else []
    async with running() as runner:
        await runner.offer(Made(0))
        await core.hears(lambda event: event == events.LastRead("sluice.node.a", entry))
    assert bus.silent_reads == 0


async def test_own_instructions_are_carried_out_and_reported(core, running):
    """A core gets the result of each of its instructions; some have none."""

    async def make(instruction: Make) -> Made | None:
        return Made(instruction.number) if instruction.number else None

    core.rules = lambda event: [Make("a", 0), Make("a", 1)] if event == Made(100) else []
    async with running(execute={Make: make}) as runner:
        await runner.offer(Made(100))
        await core.hears(lambda event: event == Made(1))
    assert core.heard == [Made(100), Made(1)]


async def test_what_waits_for_nothing_is_done_before_another_task_has_a_turn(core, bus, running, monkeypatch):
    """Of many nodes in one process each goes on as far as it can: none waits for a turn of all others."""
    monkeypatch.setattr(core_runner, "SLICE_S", 60.0)  # however slow the machine is
    turns = []
    follows = {FIRST: 1, Made(1): 3, Made(3): 5, Made(5): 6}

    async def run(make):
        turns.append(("waited", make.number))
        return Made(make.number)

    def at_once(make):
        def do():
            turns.append(("at once", make.number))
            return Made(make.number)

        return do if make.number % 2 else None

    def rules(event):
        if event == FIRST:
            asyncio.get_running_loop().call_soon(turns.append, "others")
        return [Make("g1", follows[event])] if event in follows else []

    core.rules = rules
    async with running(execute={Make: Executor(run, at_once=at_once)}):
        bus.batches.put_nowait([FIRST])
        await core.hears(lambda event: event == Made(6))
    assert turns == [("at once", 1), ("at once", 3), ("at once", 5), "others", ("waited", 6)]


async def test_the_core_handles_nothing_while_its_state_is_read(core, running):
    """What is read over several turns of the event loop is of one moment; afterwards the core goes on."""
    async with running() as runner:
        async with runner.turn:
            await runner.offer(Made(1))
            for _ in range(20):
                await asyncio.sleep(0)
            assert core.heard == []
        await core.hears(lambda event: event == Made(1))


async def test_what_fails_at_once_ends_the_service(core, run_until_failure):
    def gone():
        raise OSError("the disk is gone")

    core.rules = lambda _event: [Make("g1")]
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone"))):
        await run_until_failure(Made(1), execute={Make: Executor(pytest.fail, at_once=lambda _make: gone)})


async def test_work_on_one_gpu_is_never_done_at_the_same_time(core, running):
    """Steps on one device keep their order, other devices do not wait for them."""
    began: list[object] = []
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def work(instruction: Make) -> Made:
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


async def test_only_so_many_of_one_instruction_run_at_once(core, running):
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


async def test_an_answer_never_overtakes_the_reading_that_was_asked_for_before_it(core, bus, running):
    """A landed write would seem lost: the snapshot was older than the refusal."""
    release = asyncio.Event()

    async def answer(_instruction: Make) -> Made:
        await release.wait()
        return Made(2)

    long_batch = [started(number) for number in range(2000)]
    core.rules = lambda event: [Make("a")] if event == Made(1) else []
    async with running(execute={Make: answer}) as runner:
        await runner.offer(Made(1))
        await core.hears(lambda event: event == Made(1))
        bus.batches.put_nowait(long_batch)
        # until the batch is in the inbox, so that the server may be asked for the next one
        while bus.asked < 2:  # noqa: ASYNC110 - the fake bus has no bell
            await asyncio.sleep(0)
        release.set()
        await core.hears(lambda event: event == Made(2))
    assert core.heard == [Made(1), *long_batch, Made(2)]


async def test_time_passes_for_the_core_in_the_middle_of_a_giant_batch(core, bus, running):
    """100,000 last values at start do not stop time-outs from being noticed, nor connections from answering."""

    class Slow(SystemClock):
        """Each look at it costs a millisecond, each wait one turn of the event loop."""

        elapsed_s = 0.0

        def monotonic(self) -> float:
            self.elapsed_s += 0.001
            return self.elapsed_s

        async def sleep(self, duration_s: float) -> None:
            await asyncio.sleep(0)

    batch = [started(number) for number in range(1000)]
    async with running(clock=Slow()):
        bus.batches.put_nowait(batch)
        await core.hears(lambda event: event == batch[-1])
    ticks = sum(isinstance(event, events.Ticked) for event in core.heard[: core.heard.index(batch[-1])])
    assert ticks >= 1000 * 0.001 / SLICE_S - 2
    assert [event for event in core.heard if not isinstance(event, events.Ticked)] == batch


async def test_a_calm_core_is_ticked_now_and_then_and_when_an_event_ends_its_calm(core, running):
    """What is periodic would stop, or what an event began would wait for seconds."""
    async with running(tick_s=1e-3, is_calm=lambda: True, calm_tick_s=5e-3):
        await core.hears(lambda event: isinstance(event, events.Ticked), count=2)
    core.heard.clear()
    async with running(tick_s=1e-3, is_calm=lambda: len(core.heard) < 3, calm_tick_s=3600.0) as runner:
        for number in range(3):
            await asyncio.sleep(0.01)
            await runner.offer(started(number))
        await core.hears(lambda event: isinstance(event, events.Ticked))
    assert core.heard[:4] == [*map(started, range(3)), events.Ticked()]


async def test_unfinished_work_goes_on_behind_all_events_that_wait(core, running):
    """Freed places would be offered to a long queue only when something else happens."""
    left = [started(number) for number in (8, 9)]
    async with running(go_on=lambda: left.pop() if core.heard and left else None) as runner:
        runner._inbox.add([started(number) for number in range(3)])
        await core.hears(lambda event: event == started(8))
    assert core.heard == [started(number) for number in (0, 1, 2, 9, 8)]


async def test_readers_wait_while_the_core_is_behind(core, running):
    async with running(events_max=100) as runner:
        runner._inbox.add([started(0)] * 100)
        await runner.offer(FIRST)
        await core.hears(lambda event: event == FIRST)
    assert core.heard == [started(0)] * 100 + [FIRST]


async def test_a_full_inbox_makes_producers_wait(running):
    async with running(events_max=10) as runner:
        runner._inbox.add([started(0)] * 10)
        coroutine = runner.offer(FIRST)
        coroutine.send(None)
        assert len(runner._inbox) == 10
        coroutine.close()


async def test_a_failing_executor_ends_the_service(core, run_until_failure):
    """A core that misses an answer does not go on: the supervisor restarts the service."""

    async def broken(_instruction: Make) -> None:
        raise OSError("disk full")

    core.rules = lambda event: [Make("a")]
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="disk full")):
        await run_until_failure(Made(1), execute={Make: broken})


async def test_a_denied_write_ends_the_service(core, bus, run_until_failure):
    """Missing rights are reported loudly, not retried without end."""
    bus.failure = BusError("no permission to write sluice.waiting.r1")
    core.rules = lambda event: [write()]
    with pytest.RaisesGroup(BusError):
        await run_until_failure(Made(1))


async def test_a_failing_core_ends_the_service(core, run_until_failure):
    core.rules = lambda event: 1 / 0
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await run_until_failure(Made(1))


async def test_an_instruction_without_executor_ends_the_service(core, run_until_failure):
    """A missing executor fails at the first instruction instead of dropping it."""
    core.rules = lambda event: [Make("a")]
    missing = pytest.RaisesExc(LookupError, match="test has no executor for Make")
    with pytest.RaisesGroup(missing, flatten_subgroups=True):
        await run_until_failure(Made(1))


async def test_a_reader_that_ends_ends_the_service(bus, run_until_failure, monkeypatch):
    async def nothing(*_which):
        return
        yield

    monkeypatch.setattr(bus, "read", nothing)
    ended = pytest.RaisesExc(RuntimeError, match="a reader of test has ended")
    with pytest.RaisesGroup(ended, flatten_subgroups=True):
        await run_until_failure(Made(1))


@pytest.mark.parametrize(("drain_s", "is_answered"), [(5.0, True), (0.05, False)], ids=["answered", "given up"])
async def test_a_stop_waits_for_a_write_under_way_and_not_for_ever(core, bus, running, drain_s, is_answered):
    """An orderly stop leaves as few unknown writes as possible; one that never ends is given up."""
    bus.hold_writes = asyncio.Event()
    core.rules = lambda event: [write()] if event == Made(1) else []
    async with asyncio.timeout(5), running(drain_s=drain_s) as runner:
        await runner.offer(Made(1))
        await core.hears(lambda event: event == Made(1))
        (under_way,) = runner._under_way
        if is_answered:
            asyncio.get_running_loop().call_later(0.05, bus.hold_writes.set)
    assert under_way.done()
    assert under_way.cancelled() is not is_answered
    assert bus.closed_readers == [(events.Stream.BOOK, ())]
