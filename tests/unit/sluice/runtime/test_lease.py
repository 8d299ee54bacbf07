"""How soon a lease is read again, on the test's clock. `conformance` tests that it has one holder."""

import asyncio
from datetime import UTC, datetime

import pytest
from factories.broker.bus_rigs import LosingAnswers

from sluice.contracts.bus.events import Entry, Stream
from sluice.contracts.ids import RunId
from sluice.runtime.bus import Answer
from sluice.runtime.clock import SystemClock
from sluice.runtime.lease import RENEWALS, RETRY_S, Lease
from sluice.runtime.service import DRAIN_S
from sluice.testing.memory_bus import MemoryBroker

TTL_S = 3
RENEWAL_S = TTL_S / RENEWALS


class EnoughError(Exception):
    """The test has seen enough."""


class CountedClock:
    """Time that passes only in sleeps, and ends after so many of them."""

    def __init__(self, sleeps: int) -> None:
        self._left = sleeps
        self._now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self._now

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self._now, UTC)

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self._now += duration_s
        if len(self.slept) == self._left:
            raise EnoughError


class Deaf:
    async def last(self, _stream: Stream, _subject: str) -> Entry | None:
        raise TimeoutError


async def kept(bus: object, sleeps: int) -> tuple[Lease, list[float]]:
    """A candidate's lease after so many reads, and how long it slept after each."""
    clock = CountedClock(sleeps)
    lease = Lease(bus, clock, role="allocator", run=RunId("run"), ttl_s=TTL_S)  # type: ignore[arg-type]
    with pytest.raises(EnoughError):
        await lease.keep()
    return lease, clock.slept


async def test_a_holder_resumes_as_soon_as_the_broker_is_back():
    """Pods would wait a whole renewal longer after each restart of the broker."""
    lease, slept = await kept(LosingAnswers(MemoryBroker().bus("allocator", None), 2), 4)
    assert slept == [RETRY_S, RETRY_S, RENEWAL_S, RENEWAL_S]
    assert lease.epoch > 0


async def test_a_broker_that_is_away_is_asked_again_soon():
    """A standby must notice that it is back, too."""
    _, slept = await kept(Deaf(), 3)
    assert slept == [RETRY_S] * 3


async def test_an_answer_is_not_asked_for_more_often_than_it_must_be():
    """Each attempt is a write to every replica."""
    bus = MemoryBroker().bus("allocator", None)
    _, slept = await kept(bus, 3)
    assert slept == [RENEWAL_S] * 3


async def test_a_silent_broker_does_not_keep_its_holder_from_ending():
    """A write waits for an answer as long as a service has to stop: it would be killed before finishing."""
    bus = MemoryBroker().bus("allocator")
    lease = Lease(bus, SystemClock(), role="allocator", run=RunId("run"), ttl_s=TTL_S)
    await lease.step()
    assert lease.held

    async def unanswered(*_: object) -> Answer:
        return await asyncio.get_running_loop().create_future()

    bus.write = unanswered
    async with asyncio.timeout(DRAIN_S / 2):
        await lease.release()
    assert not lease.held
