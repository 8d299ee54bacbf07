"""Waiting ends, and waiting requests are tried in turn."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, order, working_allocator
from factories.scheduling.preemption import WHOLE, high, low, promise_for

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.messages import EvictionOver, Grant, Pending, WaitOver
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.reservations.reservation import with_promises
from sluice_allocator.core.serve import offers

P1 = RequestId("p1")
OTHERS_WORD = Pending(request=P1, request_revision=1, message="its place is booked", reasons=())


def test_what_another_allocator_wrote_before_it_stood_by_is_put_right(bench):
    """It had not read that the pod is bound."""
    bench.bound("p1", claim(profile="7g.40gb"))
    assert bench.words(bench.observe(subjects.waiting(P1), OTHERS_WORD)) == [WaitOver(request=P1)]


def test_an_order_that_another_allocator_took_back_stands_again(bench):
    bench.run(low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    batch = RequestId("batch")
    again = bench.words(bench.observe(subjects.eviction(batch), EvictionOver(request=batch)))
    assert again == [order("batch", "its place is needed for default/service")]


def test_two_who_wait_for_others_differently_do_not_answer_each_other_without_end(bench):
    """A pod with a booked place shows what it waits for, and one of two allocators has not read who is gone."""
    bench.run(low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    service = RequestId("service")
    theirs = Pending(request=service, request_revision=1, message="its place waits for two", reasons=())
    assert [bench.observe(subjects.waiting(service), theirs) for _ in range(20)] == [[]] * 20


def test_a_request_waits_until_its_grant_has_landed(bench):
    said = bench.request(asked("p1", claim(profile="7g.40gb")))
    assert bench.observe(subjects.waiting(P1), OTHERS_WORD) == []
    grant, *over = bench.words(said)
    assert (type(grant), over) == (Grant, [WaitOver(request=P1)])


def test_the_promises_of_several_models_are_named_in_the_same_order_by_all():
    """Else each writes its own order over the other's, every few seconds and for each that waits, without end."""
    said = []
    for models in (("A", "B"), ("B", "A")):
        bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
        for model in models:
            bench.allocator.ctx.promised.count(AllocationId(f"x_{model}_1"), (model,))
        reasons = tuple(ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=1, of=model) for model in ("A", "B"))
        said.append(with_promises(bench.allocator.ctx, NoPlace("full", reasons)))
    assert said[0] == said[1]


def test_the_many_who_wait_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch):
    """A request that is never looked at again shows yesterday's reason."""
    bench, batch = working_allocator(), SchedulerConfig().pending_refresh_batch
    names = [f"pod-{number}" for number in range(batch + 6)]
    bench.asks(*(asked(name) for name in names))
    looked_at: list[str] = []
    look_again = offers._look_again
    monkeypatch.setattr(offers, "_look_again", lambda ctx, name: looked_at.append(name) or look_again(ctx, name))
    bench.passes(1.0)
    assert looked_at == names[:batch]
    looked_at.clear()
    bench.passes(1.0)
    assert looked_at == names[batch:] + names[: batch - 6]
