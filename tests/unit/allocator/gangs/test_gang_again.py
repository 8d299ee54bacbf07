"""Jobs that gave everything back once and are granted again, or whose pods do not agree any more."""

from factories.scheduling.gangs import WHOLE, ask, bound, everything, fleet, gone, grant_of, grants, member, ready, tick
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.messages import Closed, Held, Revoke, SliceDegraded, Waived


def breaks(bench, grant):
    booking = grant.booking
    word = SliceDegraded(
        allocation=booking.allocation, request=booking.request, revision=grant.revision, message="Xid 79"
    )
    return everything(bench, bench.observe(subjects.slice_(booking.node, booking.allocation), word))


def test_a_place_that_is_lost_after_an_earlier_give_back_costs_the_others_nothing():
    """The whole job would give back what it has, make everything again, and begin later."""
    bench = fleet(4)
    first = grants(ask(bench, *(member(name, WHOLE, size=3) for name in "abc")))
    said = tick(bench, 61.0)
    assert sorted(each.request for each in said if isinstance(each, Waived)) == ["a", "b", "c"]
    said = []
    for name in "abc":
        said += gone(bench, first[name])
    again = grants(said) or grants(tick(bench, 1.0))
    assert sorted(again) == ["a", "b", "c"]
    ledger = bench.allocator.ctx.facts.ledger
    assert all(isinstance(ledger[each.booking.allocation], Closed) for each in first.values())  # all is taken back
    for name in "ab":
        ready(bench, again[name])
    said = breaks(bench, again["c"])
    assert [each.booking.request for each in said if isinstance(each, Revoke)] == ["c"]
    third = grants(said)["c"]
    assert sorted(bound(ready(bench, third))) == ["a", "b", "c"]


def test_a_pod_that_runs_keeps_its_slice_whatever_size_its_job_is_said_to_have():
    """The broker was wiped, so no binding speaks for it: it would be killed for an edited annotation."""
    bench = fleet(3)
    asks = []
    for number, (name, size) in enumerate((("a", 2), ("b", 3))):
        asked = member(name, WHOLE, size=size)
        grant = replace(grant_of(name, f"node-{number}", asked), adopted=True)
        everything(bench, bench.observe(subjects.ledger(grant.booking.node, grant.booking.allocation), grant))
        everything(bench, bench.ready(grant))
        asks.append(replace(asked, held=Held(node=grant.booking.node, allocation=grant.booking.allocation)))
    said = ask(bench, *asks)
    for _ in range(10):
        said += tick(bench, 61.0)

    assert not any(isinstance(each, Waived | Revoke) for each in said)
    assert sorted(bound(said)) == ["a", "b"]
