"""Pods that are granted together: what looking for their places costs others, and what users read."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim
from factories.scheduling.gangs import (
    SMALL,
    WHOLE,
    ask,
    everything,
    fleet,
    gone,
    grant_of,
    grants,
    member,
    ready,
    tick,
    waits,
    withdraw,
)

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Pending
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.explain.status import RequestState, RequestStatus, how_it_stands
from sluice_allocator.core.gangs import reconcile as groups


def many(count: int) -> list[AllocationRequested]:
    return [member(f"m{number}", size=count) for number in range(count)]


def test_a_large_job_is_looked_for_in_steps_and_ordered_at_once():
    """A thousand pods must not stand in the way of one: each event does its part, and others are served between."""
    bench = fleet(3, group_steps=4)
    pods = many(14)
    ask(bench, *pods[:-1])
    (begun,) = [bench.request(pods[-1])]
    assert not any(isinstance(each, Write) and isinstance(each.message, Grant) for each in begun)
    assert bench.allocator.ctx.gangs.trial is not None
    beside = bench.request(asked("one", claim(profile="3g.20gb")))
    assert any(isinstance(each, Write) and isinstance(each.message, Grant) for each in beside)
    assert len(grants(everything(bench, beside))) == 15


def test_what_another_allocator_writes_on_a_node_of_a_trial_is_respected():
    """Its places there are looked for again: they were found before that was known."""
    bench = fleet(2, group_steps=1)
    ask(bench, member("a", WHOLE))
    bench.request(member("b", WHOLE))
    trial = bench.allocator.ctx.gangs.trial
    assert trial is not None
    (found,) = trial.found.values()
    other = grant_of("x", found.node, asked("x", WHOLE))
    said = everything(bench, bench.observe(subjects.ledger(other.booking.node, other.booking.allocation), other))
    assert not grants(said)
    assert set(bench.allocator.ctx.cluster.booked()) == {other.booking.allocation}


@pytest.mark.parametrize("ended", ["withdrawn", "lease", "reread"])
def test_a_trial_that_is_cut_short_leaves_no_place_booked(ended: str):
    """A booking without an order would block the place until this process ends."""
    bench = fleet(3, group_steps=4)
    pods = many(14)
    ask(bench, *pods[:-1])
    bench.request(pods[-1])
    assert bench.allocator.ctx.cluster.booked()
    match ended:
        case "withdrawn":
            withdraw(bench, "m0")
        case "lease":
            everything(bench, bench.handle(LeaseChanged(False)))
        case _:
            bench.read_all()
    assert bench.allocator.ctx.gangs.trial is None
    assert not bench.allocator.ctx.cluster.booked()
    assert not bench.allocator.ctx.assumed


def test_a_hopeless_job_is_not_tried_on_each_freed_slice():
    """Only where the pod that had no place would have one now: a busy fleet frees a thousand slices a second."""
    bench = fleet(2)
    small = grants(ask(bench, asked("s", SMALL), asked("t", WHOLE)))
    ask(bench, member("a", WHOLE), member("b", WHOLE))
    other = grants(ask(bench, asked("u", SMALL)))
    tick(bench, 10.0)
    tried = bench.allocator.ctx.numbered
    withdraw(bench, "u")
    gone(bench, other["u"])
    assert bench.allocator.ctx.numbered == tried
    withdraw(bench, "s")
    withdraw(bench, "t")
    gone(bench, small["s"])
    assert sorted(grants(gone(bench, small["t"]))) == ["a", "b"]


def test_more_pods_of_one_name_than_a_job_can_have_are_looked_at_once_a_tick(monkeypatch):
    """Ten thousand pods under one group's name must not make each event as long as all of them."""
    monkeypatch.setattr(groups, "LARGEST", 3)
    bench = fleet(4)
    assert sorted(grants(ask(bench, *(member(name, WHOLE) for name in "abcd")))) == ["a", "b"]
    assert sorted(grants(tick(bench, 1.0))) == ["c", "d"]


@pytest.mark.parametrize("leaves", ["a", "c", "f"])
def test_a_trial_of_a_large_group_begins_anew_when_one_of_it_has_gone(monkeypatch, leaves: str):
    """A place is looked for, or was found, for a pod that is not there: the allocator would die, or grant it."""
    monkeypatch.setattr(groups, "LARGEST", 3)
    bench = fleet(6, group_steps=1)
    ask(bench, *(member(name, WHOLE, size=6) for name in "abcdef"))
    bench.now += 1.0
    bench.handle(Ticked())
    trial = bench.allocator.ctx.gangs.trial
    assert trial is not None
    assert list(trial.left) == list("cdef")
    assert not grants(withdraw(bench, leaves))
    assert bench.allocator.ctx.cluster.booked() == {}
    assert not grants(tick(bench, 1.0))
    assert len(grants(ask(bench, member("g", WHOLE, size=6)) + tick(bench, 1.0))) == 6


def test_a_group_that_comes_together_does_not_write_to_all_of_it_for_each_that_comes():
    """A thousand pods that learn of each other's coming are half a million writes."""
    bench = fleet(1)
    said = ask(bench, *many(40)[:-1])
    assert sum(isinstance(each, Pending) for each in said) == 39
    said = tick(bench, 6.0)
    told = waits(said)
    assert told["m0"].message == "39 of 40 pods of group train have asked"
    assert len(told) <= SchedulerConfig().pending_refresh_batch


def standing(bench: Bench, request: str) -> RequestStatus:
    found = how_it_stands(bench.allocator.ctx, RequestId(request))
    assert found is not None
    return found


def test_everybody_of_a_waiting_group_can_be_asked_why():
    """The sentence of the whole, by filter, and the turn of the one who stands in the queue for all."""
    bench = fleet(1)
    blocker = grants(ask(bench, asked("x", WHOLE)))["x"]
    ask(bench, member("a", WHOLE), member("b", WHOLE), asked("p", WHOLE))
    told = standing(bench, "b")
    assert told.state is RequestState.QUEUED
    assert told.message.startswith("waits: 0 of 2 pods of group train have a place; the 1st (a): ")
    assert [step.filter for step in told.steps][-1] == "turn"
    assert told.turn is not None
    assert told.turn.waiting == 2
    assert blocker


def test_who_has_a_place_is_told_for_whom_it_waits():
    """A pod whose slice is ready and that does not start would look broken."""
    bench = fleet(2)
    granted = grants(ask(bench, member("a", WHOLE), member("b", WHOLE)))
    ready(bench, granted["a"])
    told = standing(bench, "a")
    assert told.state is RequestState.GRANTED
    assert told.message == (
        "its place is reserved, and group train starts when all of its 2 pods have theirs: 2 have a place, 1 a ready "
        "slice"
    )
