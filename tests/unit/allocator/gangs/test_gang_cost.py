"""What the search for places of a job costs, and what a place that is lost later does not cost."""

import pytest
from factories.scheduling.allocator import asked, claim
from factories.scheduling.gangs import (
    SMALL,
    WHOLE,
    ask,
    bound,
    everything,
    fleet,
    gone,
    grant_of,
    grants,
    member,
    ready,
    tick,
    waits,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Ticked, Write
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.gangs import reconcile as groups


def many(count: int) -> list[msg.AllocationRequested]:
    return [member(f"m{number}", size=count) for number in range(count)]


def test_a_large_job_is_looked_for_in_steps_and_ordered_at_once():
    """A thousand pods must not stand in the way of one: each event does its part, and others are served between."""
    bench = fleet(3, group_steps=4)
    pods = many(14)
    ask(bench, *pods[:-1])
    (begun,) = [bench.request(pods[-1])]
    assert not any(isinstance(each, Write) and isinstance(each.message, msg.Grant) for each in begun)
    assert bench.allocator.ctx.gangs.trial is not None
    beside = bench.request(asked("one", claim(profile="3g.20gb")))
    assert any(isinstance(each, Write) and isinstance(each.message, msg.Grant) for each in beside)
    assert len(grants(everything(bench, beside))) == 15


def test_what_another_allocator_writes_on_a_node_of_a_trial_is_respected():
    """Its places there are looked for again: they were found before that was known."""
    bench = fleet(2, group_steps=1)
    ask(bench, member("a", WHOLE))
    bench.request(member("b", WHOLE))
    trial = bench.allocator.ctx.gangs.trial
    (found,) = trial.found.values()
    other = grant_of("x", found.node, asked("x", WHOLE))
    said = everything(bench, bench.reads(other))
    assert not grants(said)
    assert set(bench.allocator.ctx.cluster.booked()) == {other.booking.allocation}


def test_a_hopeless_job_is_not_tried_on_each_freed_slice():
    """Only where the pod that had no place would have one now: a busy fleet frees a thousand slices a second."""
    bench = fleet(2)
    small = grants(ask(bench, asked("s", SMALL), asked("t", WHOLE)))
    ask(bench, member("a", WHOLE), member("b", WHOLE))
    other = grants(ask(bench, asked("u", SMALL)))
    tick(bench, 10.0)
    tried = bench.allocator.ctx.numbered
    bench.withdraw("u")
    gone(bench, other["u"])
    assert bench.allocator.ctx.numbered == tried
    bench.withdraw("s")
    bench.withdraw("t")
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
    assert list(trial.left) == list("cdef")
    assert not grants(bench.withdraw(leaves))
    assert bench.allocator.ctx.cluster.booked() == {}
    assert not grants(tick(bench, 1.0))
    assert len(grants(ask(bench, member("g", WHOLE, size=6)) + tick(bench, 1.0))) == 6


def test_a_group_that_comes_together_does_not_write_to_all_of_it_for_each_that_comes():
    """A thousand pods that learn of each other's coming are half a million writes."""
    bench = fleet(1)
    said = ask(bench, *many(40)[:-1])
    assert sum(isinstance(each, msg.Pending) for each in said) == 39
    said = tick(bench, 6.0)
    told = waits(said)
    assert told["m0"].message == "39 of 40 pods of group train have asked"
    assert len(told) <= SchedulerConfig().pending_refresh_batch


def test_a_place_that_is_lost_after_an_earlier_give_back_costs_the_others_nothing():
    """The whole job would give back what it has, make everything again, and begin later."""
    bench = fleet(4)
    first = grants(ask(bench, *(member(name, WHOLE, size=3) for name in "abc")))
    said = tick(bench, 61.0)
    assert sorted(each.request for each in said if isinstance(each, msg.Waived)) == ["a", "b", "c"]
    said = []
    for name in "abc":
        said += gone(bench, first[name])
    again = grants(said) or grants(tick(bench, 1.0))
    assert sorted(again) == ["a", "b", "c"]
    ledger = bench.allocator.ctx.facts.ledger
    assert all(isinstance(ledger[each.booking.allocation], msg.Closed) for each in first.values())  # all is taken back
    for name in "ab":
        ready(bench, again[name])
    said = everything(bench, bench.breaks(again["c"]))
    assert [each.booking.request for each in said if isinstance(each, msg.Revoke)] == ["c"]
    third = grants(said)["c"]
    assert sorted(bound(ready(bench, third))) == ["a", "b", "c"]


def test_a_pod_that_runs_keeps_its_slice_whatever_size_its_job_is_said_to_have():
    """The broker was wiped, so no binding speaks for it: it would be killed for an edited annotation."""
    bench = fleet(3)
    asks = []
    for number, (name, size) in enumerate((("a", 2), ("b", 3))):
        asked = member(name, WHOLE, size=size)
        grant = replace(grant_of(name, f"node-{number}", asked), adopted=True)
        everything(bench, bench.reads(grant))
        everything(bench, bench.ready(grant))
        asks.append(replace(asked, held=msg.Held(node=grant.booking.node, allocation=grant.booking.allocation)))
    said = ask(bench, *asks)
    said += tick(bench, 61.0, times=10)

    assert not any(isinstance(each, msg.Waived | msg.Revoke) for each in said)
    assert sorted(bound(said)) == ["a", "b"]
