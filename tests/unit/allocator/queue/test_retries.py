"""Waiting requests are looked at again with time: a bounded number of them, in turn, and none twice."""

import pytest
from factories.scheduling.allocator import asked, claim, working_allocator

from sluice.contracts.bus.events import Ticked
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.serve import offers

BATCH = SchedulerConfig().pending_refresh_batch


def looked_at(monkeypatch: pytest.MonkeyPatch, waiting: int, ticks: int) -> list[list[str]]:
    """Who was looked at in each tick, of so many who wait on a fleet without nodes."""
    bench = working_allocator()
    names = [f"pod-{number}" for number in range(waiting)]
    for name in names:
        bench.land_all(bench.request(asked(name, claim(profile="1g.5gb"))))
    found: list[str] = []
    look_again = offers._look_again

    def look(ctx, request) -> None:
        found.append(request)
        look_again(ctx, request)

    monkeypatch.setattr(offers, "_look_again", look)
    told = []
    for _ in range(ticks):
        found.clear()
        bench.now += 1.0
        bench.land_all(bench.handle(Ticked()))
        told.append(list(found))
    return told


def test_the_many_who_wait_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch):
    """A request that is never looked at again shows yesterday's reason."""
    first, second = looked_at(monkeypatch, BATCH + 6, 2)
    names = [f"pod-{number}" for number in range(BATCH + 6)]
    assert first == names[:BATCH]
    assert second == names[BATCH:] + names[: BATCH - 6]
