"""What the search for places of a job costs, and what a place that is lost later does not cost."""

import pytest
from factories.scheduling.allocator import asked, claim, only
from factories.scheduling.gangs import SMALL, WHOLE, bound, fleet, grant_of, grants, member, tick, waits
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Ticked
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.gangs import reconcile as groups


def many(count: int) -> list[msg.AllocationRequested]:
    return [member(f"m{number}", size=count) for number in range(count)]


def test_a_large_job_is_looked_for_in_steps_and_ordered_at_once():
    """A job of a thousand pods leaves room for one: each event does its part, and others are served between."""
    bench = fleet(3, group_steps=4)
    pods = many(14)
    bench.asks(*pods[:-1])
    assert not only(msg.Grant, bench.request(pods[-1]))
    assert bench.allocator.ctx.gangs.trial is not None
    beside = bench.request(asked("one", claim(profile="3g.20gb")))
    assert only(msg.Grant, beside)
    assert len(grants(bench.words(beside))) == 15


def test_what_another_allocator_writes_on_a_node_of_a_trial_is_respected():
    """Its places there are looked for again: they were found before that was known."""
    bench = fleet(2, group_steps=1)
    bench.asks(member("a", WHOLE))
    bench.request(member("b", WHOLE))
    trial = bench.allocator.ctx.gangs.trial
    (found,) = trial.found.values()
    other = grant_of(found.node, asked("x", WHOLE))
    assert not grants(bench.words(bench.reads(other)))
    assert set(bench.allocator.ctx.cluster.booked()) == {other.booking.allocation}


def test_a_hopeless_job_is_not_tried_on_each_freed_slice():
    """Only where the pod that had no place would have one now: a busy fleet frees a thousand slices a second."""
    bench = fleet(2)
    small = grants(bench.asks(asked("s", SMALL), asked("t", WHOLE)))
    bench.asks(member("a", WHOLE), member("b", WHOLE))
    other = grants(bench.asks(asked("u", SMALL)))
    tick(bench, 10.0)
    tried = bench.allocator.ctx.numbered
    bench.withdraw("u")
    bench.words(bench.gone(other["u"]))
    assert bench.allocator.ctx.numbered == tried
    bench.withdraw("s")
    bench.withdraw("t")
    bench.words(bench.gone(small["s"]))
    assert sorted(grants(bench.words(bench.gone(small["t"])))) == ["a", "b"]


def test_more_pods_of_one_name_than_a_job_can_have_are_looked_at_once_a_tick(monkeypatch):
    """Ten thousand pods under one group's name do not make each event as long as all of them."""
    monkeypatch.setattr(groups, "LARGEST", 3)
    bench = fleet(4)
    assert sorted(grants(bench.asks(*(member(name, WHOLE) for name in "abcd")))) == ["a", "b"]
    assert sorted(grants(tick(bench, 1.0))) == ["c", "d"]


@pytest.mark.parametrize("leaves", ["a", "c", "f"])
def test_a_trial_of_a_large_group_restarts_when_one_of_it_has_gone(monkeypatch, leaves: str):
    """A place is looked for, or was found, for a pod that is not there: the allocator would die, or grant it."""
    monkeypatch.setattr(groups, "LARGEST", 3)
    bench = fleet(6, group_steps=1)
    bench.asks(*(member(name, WHOLE, size=6) for name in "abcdef"))
    bench.now += 1.0
    bench.handle(Ticked())
    trial = bench.allocator.ctx.gangs.trial
    assert list(trial.left) == list("cdef")
    assert not grants(bench.withdraw(leaves))
    assert bench.allocator.ctx.cluster.booked() == {}
    assert not grants(tick(bench, 1.0))
    assert len(grants(bench.asks(member("g", WHOLE, size=6)) + tick(bench, 1.0))) == 6


def test_a_group_that_comes_together_does_not_write_to_all_of_it_for_each_that_comes():
    """A thousand pods that learn of each other's coming are half a million writes."""
    bench = fleet(1)
    assert len(only(msg.Pending, bench.asks(*many(40)[:-1]))) == 39
    told = waits(tick(bench, 6.0))
    assert told["m0"].message == "39 of 40 pods of group train have asked"
    assert len(told) <= SchedulerConfig().pending_refresh_batch


def test_a_place_that_is_lost_after_an_earlier_give_back_costs_the_others_nothing():
    """The whole job would give back what it has, make everything again, and begin later."""
    bench = fleet(4)
    first = grants(bench.asks(*(member(name, WHOLE, size=3) for name in "abc")))
    assert sorted(each.request for each in only(msg.Waived, tick(bench, 61.0))) == ["a", "b", "c"]
    said = [word for name in "abc" for word in bench.words(bench.gone(first[name]))]
    again = grants(said) or grants(tick(bench, 1.0))
    assert sorted(again) == ["a", "b", "c"]
    ledger = bench.allocator.ctx.facts.ledger
    assert all(isinstance(ledger[each.booking.allocation], msg.Closed) for each in first.values())  # all is taken back
    for name in "ab":
        bench.words(bench.ready(again[name]))
    said = bench.words(bench.breaks(again["c"]))
    assert [each.booking.request for each in only(msg.Revoke, said)] == ["c"]
    assert sorted(bound(bench.words(bench.ready(grants(said)["c"])))) == ["a", "b", "c"]


def test_a_pod_that_runs_keeps_its_slice_whatever_size_its_job_is_said_to_have():
    """The broker was wiped, so no binding keeps it: it would be killed for an edited annotation."""
    bench = fleet(3)
    asks = []
    for number, (name, size) in enumerate((("a", 2), ("b", 3))):
        asked = member(name, WHOLE, size=size)
        grant = grant_of(f"node-{number}", asked, adopted=True)
        bench.words(bench.reads(grant))
        bench.words(bench.ready(grant))
        asks.append(replace(asked, held=msg.Held(node=grant.booking.node, allocation=grant.booking.allocation)))
    said = bench.asks(*asks) + tick(bench, 61.0, times=10)
    assert not only((msg.Waived, msg.Revoke), said)
    assert sorted(bound(said)) == ["a", "b"]
