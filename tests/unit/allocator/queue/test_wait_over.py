"""Two allocators of which one reads late: what they say of a request that waits, or waits no more, or has to go."""

from factories.scheduling.allocator import Bench, asked, claim, order
from factories.scheduling.preemption import WHOLE, high, low, promise_for, run

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AnyMessage, EvictionOrdered, EvictionOver, Grant, Pending, WaitOver

P1 = RequestId("p1")
OTHERS_WORD = Pending(request=P1, request_revision=1, message="its place is booked", reasons=())


def waits(bench: Bench) -> list:
    """Another allocator says that p1 waits; returns what this one says to that."""
    said = bench.observe(subjects.waiting(P1), OTHERS_WORD)
    return [write.message for write in bench.land_all(said)]


def test_two_allocators_that_know_different_things_do_not_answer_each_other_without_end(bench):
    """They would write as fast as the bus carries it, until the slower one has read what the other has."""
    bench.bound("p1", claim(profile="7g.40gb"))

    assert waits(bench) == [WaitOver(request=P1)]
    assert [waits(bench) for _ in range(20)] == [[]] * 20

    bench.now += 1.0
    assert not any(isinstance(each, Write) for each in bench.handle(Ticked()))
    bench.now += 1.5
    assert [write.message for write in bench.land_all(bench.handle(Ticked()))] == [WaitOver(request=P1)]


def test_a_wait_that_is_over_is_not_kept_in_view_because_it_was_over_once_before(bench):
    """What another allocator said long ago would stand for as long as anybody looks at it."""
    bench.bound("p1", claim(profile="7g.40gb"))
    assert waits(bench) == [WaitOver(request=P1)]

    bench.now += 2.5
    bench.handle(Ticked())
    assert waits(bench) == [WaitOver(request=P1)]


def test_a_request_waits_until_its_grant_has_landed(bench):
    """It would be said to wait no more, and then to wait, for a grant that came to nothing."""
    said = bench.request(asked("p1", claim(profile="7g.40gb")))
    (grant,) = (i for i in said if isinstance(i, Write) and isinstance(i.message, Grant))

    assert bench.observe(subjects.waiting(P1), OTHERS_WORD) == []
    assert [write.message for write in bench.land_all([grant])][1:] == [WaitOver(request=P1)]


BATCH = RequestId("batch")
OVER = EvictionOver(request=BATCH)


def others_order(bench: Bench, word: EvictionOrdered | EvictionOver) -> list[AnyMessage | None]:
    """Another allocator says whether batch has to go; returns what this one says to that."""
    return [write.message for write in bench.land_all(bench.observe(subjects.eviction(BATCH), word))]


def later(bench: Bench, seconds: float) -> list[AnyMessage | None]:
    bench.now += seconds
    return [write.message for write in bench.land_all(bench.handle(Ticked()))]


def test_whoever_knows_why_a_pod_has_to_go_does_not_answer_without_end(bench):
    """The other one has not read the grant; the order stands again when it has."""
    run(bench, low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))

    assert [others_order(bench, OVER) for _ in range(20)] == [[]] * 20
    assert later(bench, 1.0) == []
    assert later(bench, 1.5) == [order("batch", "its place is needed for default/service")]


def test_two_who_wait_for_others_differently_do_not_answer_each_other_without_end(bench):
    """A pod with a booked place shows what it waits for, and one of two allocators has not read who is gone."""
    run(bench, low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    service = RequestId("service")
    theirs = Pending(request=service, request_revision=1, message="its place waits for two", reasons=())

    assert [bench.observe(subjects.waiting(service), theirs) for _ in range(20)] == [[]] * 20
