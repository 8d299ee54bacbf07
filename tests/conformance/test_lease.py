"""The lease that picks the working replica: never two holders while the broker is up, soon another when one is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from factories.broker.bus_rigs import NatsRig, Rig
from factories.broker.leases import kept_in_background
from factories.waiting import meanwhile, until

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.runtime.bus import Bus, Probe
from sluice.runtime.clock import SystemClock
from sluice.runtime.lease import ABANDONED_TTLS, Lease

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

TTL_S = 1


async def _candidates(rig: Rig, count: int) -> list[Lease]:
    return [
        Lease(await rig.bus(), SystemClock(), role="allocator", run=RunId(f"run{number}"), ttl_s=TTL_S)
        for number in range(count)
    ]


@asynccontextmanager
async def _watched(leases: list[Lease]) -> AsyncIterator[list[int]]:
    """Look every few milliseconds how many hold the lease."""
    counts: list[int] = []

    async def look() -> None:
        while True:
            counts.append(sum(lease.held for lease in leases))
            await asyncio.sleep(0.005)

    async with meanwhile(look()):
        yield counts


def _any_held(leases: list[Lease]) -> bool:
    return any(lease.held for lease in leases)


async def test_one_of_several_candidates_works_and_another_follows_when_it_stops(rig: Rig) -> None:
    """At no moment two; the epoch of the follower is higher."""
    leases = await _candidates(rig, 3)
    async with _watched(leases) as counts, contextlib.AsyncExitStack() as stack:
        tasks = [await stack.enter_async_context(kept_in_background(lease)) for lease in leases]
        await until(lambda: _any_held(leases))
        first = next(lease for lease in leases if lease.held)
        tasks[leases.index(first)].cancel()
        others = [lease for lease in leases if lease is not first]
        await until(lambda: _any_held(others))
        assert next(lease for lease in others if lease.held).epoch > first.epoch
    assert max(counts) == 1


async def test_a_clean_stop_hands_over_at_once(rig: Rig) -> None:
    """A released lease can be taken without waiting for its TTL."""
    one, two = await _candidates(rig, 2)
    await one.step()
    await two.step()
    assert (one.held, two.held) == (True, False)
    await one.release()
    await two.step()
    assert (one.held, two.held) == (False, True)


async def test_what_cannot_be_read_does_not_keep_replicas_from_working(rig: Rig) -> None:
    """It was put there without a TTL, by hand for instance; a holder's own value changes with each renewal."""
    leases = await _candidates(rig, 2)
    await rig.put_undecodable(subjects.lease("allocator").subject)
    async with _watched(leases) as counts, kept_in_background(leases[0]), kept_in_background(leases[1]):
        await until(lambda: _any_held(leases))
        await asyncio.sleep(ABANDONED_TTLS * TTL_S + 1)  # it is kept, and no waiting allocator takes it
    assert max(counts) == 1


async def test_a_holder_that_cannot_renew_stops_by_its_own_clock(nats: NatsRig) -> None:
    """Before the broker gives the lease to another; and works again when the broker is back."""
    leases = await _candidates(nats, 2)
    async with _watched(leases) as counts, kept_in_background(leases[0]), kept_in_background(leases[1]):
        await until(lambda: _any_held(leases))
        await nats.broker.servers[0].kill()
        await until(lambda: not _any_held(leases))
        await nats.broker.servers[0].start()
        await until(lambda: _any_held(leases))
    assert max(counts) == 1


async def test_a_probe_says_whether_a_process_answers(rig: Rig) -> None:
    """A standby could take over from a holder that works, or wait for one that has ended."""
    one, two = await rig.bus(), await rig.bus()
    async with one.answering("alive.allocator.run"):
        await until(lambda: _answers(two, Probe.ANSWERED))
        assert await two.probe("alive.allocator.other", 5.0) is Probe.ABSENT
    await until(lambda: _answers(two, Probe.ABSENT))


async def _answers(bus: Bus, expected: Probe) -> bool:
    return await bus.probe("alive.allocator.run", 5.0) is expected
