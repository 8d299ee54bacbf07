"""Looking at what has changed ends: before that no pod on any node is given a place."""

from dataclasses import replace

from factories.scheduling.allocator import Bench, all_said, asked, begun_anew, only, working_allocator
from factories.scheduling.preemption import WHOLE, low, promise_for, start, tick

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadingCaughtUp, Stream, Write
from sluice.contracts.ids import Incarnation, RequestId, RunId
from sluice.contracts.messages import Grant, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged


def all_of(bench: Bench, said: list, most: int = 50) -> list[Write]:
    """Every write lands, and what is left to do is gone on with: a bounded number of times."""
    landed = bench.land_all(said)
    for _ in range(most):
        if not bench.allocator.unfinished:
            break
        landed += bench.land_all(bench.handle(Continue()))
    return landed


def test_two_pods_that_were_each_to_go_for_the_other_hold_up_no_third():
    """The allocator would look at one for the other's sake without end, and no pod anywhere would start meanwhile."""
    bench = start(Bench(Allocator(RunId("r1"), SchedulerConfig())))
    (first,) = only(Grant, bench.land_all(bench.request(low("p1", WHOLE))))  # not ready yet
    preemptor = promise_for(bench, low("p2", WHOLE, priority=10))
    assert preemptor.after == (first.booking.allocation,)
    # making the first slice fails; it is taken back, and p2 has the place
    all_of(bench, bench.fails(first))
    all_of(bench, bench.gone(first))
    all_of(bench, bench.ready(preemptor))
    # the user of p1 makes it more important
    writes = all_of(bench, bench.request(low("p1", WHOLE, priority=20, revision=2)))
    bench.now += 5
    writes += tick(bench, 3)
    assert only(Grant, writes)[0].after == (preemptor.booking.allocation,)
    # a node comes: there is room for another, which is tried as soon as all was looked at
    bench.add_nodes("node-b")
    writes = all_of(bench, bench.request(asked("p3", WHOLE)))
    assert not bench.allocator.unfinished
    assert [each.booking.name for each in only(Grant, writes)] == ["p3"]


def test_what_was_read_is_booked_in_steps_and_meanwhile_no_place_is_given_away():
    """In one step a large fleet would hold up probes for seconds; until the last one, taken places look free."""
    before = working_allocator()
    before.add_nodes("node-a", gpus=9)
    places = {before.bound(f"p{number}", WHOLE).booking.allocation for number in range(8)}
    after = begun_anew(before, replace(before.allocator.ctx.rules, book_batch=2))
    ctx, said, left = after.allocator.ctx, [], []
    late = before.granted("p8", WHOLE)  # by the other allocator, when this one has read all, and booked half of it
    for step in (
        lambda: after.handle(LeaseChanged(held=True)),
        lambda: after.reads(late),
        lambda: after.handle(Continue()),
    ):
        left.append((len(ctx.facts.unbooked), ctx.facts.settled))
        said += step()
    assert left == [(4, False), (2, False), (0, True)]
    assert (set(ctx.cluster.booked()), ctx.facts.settled) == ({*places, late.booking.allocation}, True)
    said += all_of(after, after.request(asked("waits", WHOLE)))
    assert only(Grant, said) == []
    assert RequestId("waits") in ctx.queue


def test_what_a_wipe_took_is_forgotten_in_steps_and_what_is_written_meanwhile_stays():
    """In one step a large fleet's allocator would not renew its lease for seconds, and lose it each time."""
    rules = SchedulerConfig(book_batch=2)
    bench = start(Bench(Allocator(RunId("r1"), rules)), gpus=6)
    for number in range(6):
        bench.bound(f"p{number}", WHOLE)
    facts, steps = bench.allocator.ctx.facts, []
    bench.read_all(incarnation=Incarnation("2000"))
    known = len(facts.requests)
    bench.observe(subjects.request(RequestId("p5")), asked("p5", WHOLE))
    while facts.gone:
        assert (bench.allocator.unfinished, facts.settled, facts.is_whole) == (True, False, False)
        before = len(facts.gone)
        bench.handle(Continue())
        steps.append(before - len(facts.gone))
    assert known > len(facts.requests)
    assert len(steps) > 5
    assert max(steps) == rules.book_batch
    while bench.allocator.unfinished:
        bench.handle(Continue())
    assert (list(facts.requests), facts.settled) == ([RequestId("p5")], True)
    assert not facts.ledger | facts.bindings | facts.inventories
    assert not bench.allocator.ctx.cluster.booked()


def test_a_source_that_has_told_all_is_heard_while_what_was_read_is_booked():
    """It does so when it lists, every five minutes: so long a pod that went unseen would keep its place."""
    before = working_allocator()
    before.add_nodes("node-a", gpus=4)
    orphans = {before.bound(f"p{number}", WHOLE).booking.allocation for number in range(4)}
    before.allocator.ctx.facts.requests.clear()
    after = begun_anew(before, replace(before.allocator.ctx.rules, book_batch=1))
    after.observe(*all_said())
    assert not after.allocator.ctx.facts.settled
    writes = after.settle(after.handle(LeaseChanged(held=True)))
    for after.now in (1.0, 40.0, 41.0):
        writes += after.settle(after.tick())
    assert {each.booking.allocation for each in only(Revoke, writes)} == orphans


def test_the_end_of_no_reading_leaves_nothing_to_do():
    """A process that waited for places to be booked, while it decides, would use a core for nothing, for ever."""
    bench = start(Bench(Allocator(RunId("r1"), SchedulerConfig(book_batch=1))), gpus=3)
    for number in range(3):
        bench.bound(f"p{number}", WHOLE)
    all_of(bench, bench.handle(ReadingCaughtUp(stream=Stream.STATE)))
    assert not bench.allocator.unfinished
