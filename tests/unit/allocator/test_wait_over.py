"""Two allocators of which one reads late: what they say of a request that waits, or waits no more."""

from factories.allocator import Bench, asked, claim

from sluice.contracts import subjects
from sluice.contracts.exchange import Ticked, Write
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import Grant, Pending, WaitOver

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
