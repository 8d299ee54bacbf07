"""Pods are asked for after the limits of the file were published, in each incarnation of the broker."""

import asyncio

from factories.broker.memory_bus import MemoryBroker

from sluice.contracts.bus.events import ReadingStarted, Stream
from sluice.runtime.clock import SystemClock
from sluice_pod_watcher.core.limits_source import LimitsPublished
from sluice_pod_watcher.shell.limits import app
from sluice_pod_watcher.shell.limits.app import LimitsGate

LONG_S = 30.0
TURNS = 20


async def waits(task: asyncio.Task[None]) -> bool:
    """Whether it has not ended after many turns of the loop."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return not task.done()


async def test_the_requests_of_each_life_of_the_broker_wait_for_the_limits_of_that_life(monkeypatch):
    """After the loss of a disk a namespace could have everything, on nodes that are cordoned."""
    monkeypatch.setattr(app, "FIRST_S", LONG_S)
    broker = MemoryBroker()
    bus = broker.bus("pods")
    first = LimitsGate(bus, SystemClock())
    for _life in range(2):
        reading = ReadingStarted(Stream.STATE, await bus.incarnation(Stream.STATE))
        held = asyncio.create_task(first.begins(reading))
        assert await waits(held)
        await first.said(LimitsPublished(await bus.incarnation(Stream.BOOK)))
        await asyncio.wait_for(held, LONG_S)
        await asyncio.wait_for(first.begins(reading), LONG_S)
        broker.wipe()
        await bus.ensure_streams()


async def test_requests_wait_while_there_is_no_stream_for_the_limits_either(monkeypatch):
    """The streams of a wiped broker are made one after another."""
    monkeypatch.setattr(app, "FIRST_S", LONG_S)
    broker = MemoryBroker(streams=False)
    bus = broker.bus("pods")
    first = LimitsGate(bus, SystemClock())
    held = asyncio.create_task(first.begins(ReadingStarted(Stream.STATE, "1")))
    assert await waits(held)
    await bus.ensure_streams()
    assert await waits(held)
    await first.said(LimitsPublished(await bus.incarnation(Stream.BOOK)))
    await asyncio.wait_for(held, LONG_S)


async def test_answers_are_read_without_the_limits():
    """What was granted would not be known while a file is away."""
    broker = MemoryBroker()
    bus = broker.bus("pods")
    reading = ReadingStarted(Stream.BOOK, await bus.incarnation(Stream.BOOK))
    held = asyncio.create_task(LimitsGate(bus, SystemClock()).begins(reading))
    assert not await waits(held)


async def test_pods_are_served_although_limits_cannot_be_said(monkeypatch):
    monkeypatch.setattr(app, "FIRST_S", 0.01)
    bus = MemoryBroker().bus("pods")
    reading = ReadingStarted(Stream.STATE, await bus.incarnation(Stream.STATE))
    await asyncio.wait_for(LimitsGate(bus, SystemClock()).begins(reading), LONG_S)
