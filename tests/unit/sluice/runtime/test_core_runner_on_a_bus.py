"""A real outbox in a core, on a bus that loses messages and answers: what was wanted is published."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from factories.broker.memory_bus import MemoryBroker, MemoryBus

from sluice.contracts.bus.events import Entry, ReadingStarted, Stream, Ticked
from sluice.contracts.bus.subjects import head, waiting
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice.contracts.messages import NodeOpened, WaitOver
from sluice.contracts.outbox import Outbox
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import INSTRUCTIONS, WRITES, WRITES_AGAIN
from sluice.runtime.tracing.request_traces import RequestTraces

REQUESTS = [RequestId(f"r{number}") for number in range(50)]
NODE = NodeName("gpu-1.example.internal")


class _Keeper:
    """A core that keeps one message per request, and one ledger head when asked."""

    def __init__(self, reading: str = "stream") -> None:
        self.outbox = Outbox(RunId("run1"), frozenset({"waiting", "ledger"}), reading=reading)
        self.settled = asyncio.Event()
        for request in REQUESTS:
            self.outbox.keep(waiting(request), WaitOver(request=request), request=request)

    def handle(self, event: object, now: float) -> list[object]:
        if isinstance(event, Ticked):
            self.outbox.tick(now)
        elif self.outbox.handle(event, now):
            self.settled.set()
        return self.outbox.drain()


@asynccontextmanager
async def _running(core: _Keeper, bus: MemoryBus, **options) -> AsyncIterator[None]:
    """The core runs on the bus meanwhile, as a reader of its streams or of the `ledger` of a node."""
    readings = [] if "ledger" in options else [(Stream.STATE, ("sluice.waiting.>",)), (Stream.BOOK, ())]
    options |= {"clock": SystemClock(), "traces": RequestTraces(), "readings": readings, "tick_s": 0.05}
    task = asyncio.create_task(CoreRunner(name="keeper", core=core, bus=bus, **options).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _values(bus: MemoryBus) -> list[Entry | None]:
    return [await bus.last(Stream.STATE, waiting(request).subject) for request in REQUESTS]


async def _until_all_there(bus: MemoryBus) -> None:
    async with asyncio.timeout(10):
        while not all(await _values(bus)):  # noqa: ASYNC110 - values have no bell
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("trouble", ["lose_answers", "lose_writes"])
async def test_what_a_core_wants_is_there_although_words_are_lost(trouble):
    """A short outage leaves no request without its message; and the outage is visible."""
    words = {answer: ("keeper", "WaitOver", answer) for answer in ("accepted", "unknown")}
    before = {answer: metrics.value(WRITES, *labels) for answer, labels in words.items()}
    again, decided = metrics.value(WRITES_AGAIN, "keeper", "WaitOver"), metrics.value(INSTRUCTIONS, "keeper", "Write")
    broker = MemoryBroker()
    bus = broker.bus("keeper")
    setattr(bus, trouble, 30)
    async with _running(_Keeper(), bus):
        await _until_all_there(broker.bus("test"))
    assert [entry.message for entry in await _values(broker.bus("test"))] == [WaitOver(request=r) for r in REQUESTS]
    assert metrics.value(WRITES, *words["unknown"]) - before["unknown"] == 30
    assert metrics.value(WRITES, *words["accepted"]) > before["accepted"]
    assert metrics.value(WRITES_AGAIN, "keeper", "WaitOver") - again >= 30
    assert metrics.value(INSTRUCTIONS, "keeper", "Write") - decided >= len(REQUESTS) + 30


async def test_a_commit_whose_answer_is_lost_is_settled():
    broker, core = MemoryBroker(), _Keeper()
    bus = broker.bus("keeper")
    opened = NodeOpened(node=NODE, incarnation="1", boot_id="b", agent_run="a")
    operation = core.outbox.commit(head(NODE), opened)
    bus.lose_answers = 60
    async with _running(core, bus):
        await asyncio.wait_for(core.settled.wait(), 10)
    entry = await broker.bus("test").last(Stream.BOOK, head(NODE).subject)
    assert (entry.operation, entry.message) == (operation, opened)


async def test_a_wiped_broker_is_filled_again():
    """After the broker lost everything, what is wanted is published again by itself."""
    broker = MemoryBroker()
    async with _running(_Keeper(), broker.bus("keeper")):
        await _until_all_there(broker.bus("test"))
        broker.wipe()
        await broker.bus("test").ensure_streams()
        await _until_all_there(broker.bus("test"))


async def test_an_agent_writes_without_reading_any_stream(monkeypatch):
    """An agent sees only its ledger and the last values of its own subjects, also when the broker comes up late."""
    broker = MemoryBroker()
    bus = broker.bus("agent")
    bus.connected = False
    unanswered = asyncio.Event()
    last = bus.last

    async def noticed(stream: Stream, subject: str) -> Entry | None:
        try:
            return await last(stream, subject)
        except TimeoutError:
            unanswered.set()
            raise

    monkeypatch.setattr(bus, "last", noticed)
    async with _running(_Keeper("last"), bus, ledger=NODE):
        await asyncio.wait_for(unanswered.wait(), 5)
        bus.connected = True
        await _until_all_there(broker.bus("test"))


async def test_a_reading_waits_until_its_reader_is_ready():
    """Pods would be requested before the limits of their namespaces are published."""
    bus = MemoryBroker().bus("keeper")
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def begins(_reading: ReadingStarted) -> None:
        begun.set()
        await may_go_on.wait()

    async with _running(_Keeper(), bus, begins=begins):
        await asyncio.wait_for(begun.wait(), 10)
        for _ in range(20):
            await asyncio.sleep(0)
        assert await _values(bus) == [None] * len(REQUESTS)
        may_go_on.set()
        await _until_all_there(bus)
