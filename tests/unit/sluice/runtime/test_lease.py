"""How soon a lease is read again, on the test's clock. `conformance` tests that it has one holder."""

import asyncio
import time

import pytest
from factories.broker.bus_rigs import LosingAnswers
from factories.broker.leases import kept_in_background
from factories.broker.memory_bus import MemoryBroker, MemoryBus
from factories.waiting import until

from sluice.contracts.ids import RunId
from sluice.runtime.bus import Answer
from sluice.runtime.clock import SystemClock
from sluice.runtime.lease import AWAKE_S, PROBE_S, RENEWALS, RETRY_S, Lease
from sluice.runtime.service import DRAIN_S

TTL_S = 3
PER_RENEWAL = round(TTL_S / RENEWALS / PROBE_S)


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

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self._now += duration_s
        if len(self.slept) == self._left:
            raise EnoughError


async def kept(bus: object, sleeps: int) -> tuple[Lease, list[float]]:
    """A candidate's lease after so many reads, and how long it slept after each."""
    clock = CountedClock(sleeps)
    lease = Lease(bus, clock, role="allocator", run=RunId("run"), ttl_s=TTL_S)  # type: ignore[arg-type]
    with pytest.raises(EnoughError):
        await lease.keep()
    return lease, clock.slept


async def test_a_holder_resumes_as_soon_as_the_broker_is_back():
    """Pods would wait a whole renewal longer after each restart of the broker."""
    lease, slept = await kept(LosingAnswers(MemoryBroker().bus("allocator", None), 2), 2 + 2 * PER_RENEWAL)
    assert slept == [RETRY_S] * 2 + [PROBE_S] * 2 * PER_RENEWAL
    assert lease.epoch > 0


async def test_a_broker_that_is_away_is_asked_again_soon():
    bus = MemoryBroker().bus("allocator")
    bus.connected = False
    _, slept = await kept(bus, 3)
    assert slept == [RETRY_S] * 3


async def test_an_answer_is_not_asked_for_more_often_than_it_must_be():
    bus = MemoryBroker().bus("allocator", None)
    first, _ = await kept(bus, 1)
    again, _ = await kept(bus, 3 * PER_RENEWAL)
    assert again.epoch == first.epoch + 3  # sequences of a stream that has nothing else


def lease_of(broker: MemoryBroker, name: str = "allocator") -> Lease:
    return Lease(broker.bus(name), SystemClock(), role="allocator", run=RunId(name), ttl_s=60)


async def test_a_silent_broker_does_not_keep_its_holder_from_ending(monkeypatch):
    """A write waits for an answer as long as a service has to stop: it would be killed before finishing."""
    lease = lease_of(MemoryBroker())
    await lease.step()
    assert lease.held

    async def unanswered(*_: object) -> Answer:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(MemoryBus, "write", unanswered)
    async with asyncio.timeout(DRAIN_S / 2):
        await lease.release()
    assert not lease.held


@pytest.mark.parametrize("way", ["ends", "hangs"])
async def test_a_standby_takes_over_before_the_lease_expires(way):
    """Pods would wait a whole TTL, and a second for the broker, each time an allocator is killed."""
    broker = MemoryBroker()
    holder, standby = lease_of(broker, "one"), lease_of(broker, "two")
    async with kept_in_background(holder) as kept, kept_in_background(standby):
        await until(lambda: holder.held)
        await asyncio.sleep(3 * PROBE_S)  # it has answered
        assert not standby.held
        if way == "ends":
            kept.cancel()
        else:
            broker.answering["alive.allocator.one"].frozen = True
        await until(lambda: standby.held, within_s=20)
    assert standby.epoch > 1


async def test_a_holder_that_never_answered_is_waited_for():
    """One of a version before, whose lease would be taken at once, and back, and again."""
    broker = MemoryBroker()
    older, standby = lease_of(broker, "one"), lease_of(broker, "two")
    await older.step()
    async with kept_in_background(standby):
        await asyncio.sleep(4 * PROBE_S)
    assert standby.epoch == 0


async def test_a_holder_that_was_paused_renews_before_it_works_on():
    """Another has taken over meanwhile, and both would write to pods."""
    lease = lease_of(MemoryBroker())
    async with kept_in_background(lease):
        await until(lambda: lease.held)
        before = lease.epoch
        time.sleep(AWAKE_S)  # noqa: ASYNC251 - the whole process pauses
        assert not lease.held
        async with asyncio.timeout(5):
            await lease.turns(held=False)
        await until(lambda: lease.held)
        assert lease.epoch > before
