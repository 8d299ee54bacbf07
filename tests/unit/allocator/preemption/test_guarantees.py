"""Who is evicted when namespaces are guaranteed something, or may have only so much."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot
from factories.scheduling.gangs import everything, grant_of
from factories.scheduling.preemption import (
    HALF,
    WHOLE,
    ends,
    evictions,
    high,
    low,
    promise_for,
    run,
    said,
    start,
    tick,
    withdraw,
)
from factories.scheduling.resize import MODES, adjusted, change, mps
from factories.scheduling.resize import said as answered

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import (
    Amounts,
    Closed,
    Grant,
    Pending,
    PodGroup,
    QuotaSet,
    QuotaUnset,
    Released,
    RequestWithdrawn,
    Revoke,
    WaitOver,
)
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import AdjustAsked


def guarantee(bench: Bench, namespace: str, gpus: int) -> None:
    quota = QuotaSet(namespace=namespace, guaranteed=Amounts(gpus=gpus))
    bench.land_all(bench.observe(subjects.quota(namespace), quota))


def test_another_namespace_keeps_what_it_is_guaranteed(empty):
    """tensor-fusion #551: of two pods of a namespace that is guaranteed one, one may go; the other may not."""
    start(empty, nodes=2)
    guarantee(empty, "research", 1)
    run(empty, low("one", WHOLE, namespace="research"))
    run(empty, low("two", WHOLE, namespace="research"))
    promise_for(empty, high("service", WHOLE))
    (pending,) = said(empty.land_all(empty.request(high("second", WHOLE))))
    assert isinstance(pending, Pending)


def test_two_who_are_served_by_one_word_leave_another_namespace_what_it_is_guaranteed(empty):
    """A raised limit serves both at once: the second must not count on the pod that goes for the first."""
    start(empty, nodes=2)
    guarantee(empty, "research", 1)
    run(empty, low("one", WHOLE, namespace="research"))
    run(empty, low("two", WHOLE, namespace="research"))
    limit = QuotaSet(namespace="default", total=Amounts(gpus=0))
    empty.land_all(empty.observe(subjects.quota("default"), limit))
    empty.land_all(empty.request(high("service", WHOLE)))
    empty.land_all(empty.request(high("other", claim(profile="4g.20gb"))))
    raised = msgspec.structs.replace(limit, total=Amounts(gpus=2))
    written = said(empty.land_all(empty.observe(subjects.quota("default"), raised)))
    written += said(tick(empty, 20))
    assert [each.booking.name for each in written if isinstance(each, Grant)] == ["service"]
    assert list(evictions(empty)) in (["one"], ["two"])


def test_who_is_being_revoked_does_not_fill_a_guarantee(empty):
    """Of two pods of a namespace that is guaranteed one, one ends: before the ledger says so the other would go."""
    start(empty, nodes=2)
    guarantee(empty, "research", 1)
    run(empty, low("one", WHOLE, namespace="research"))
    ending = run(empty, low("two", WHOLE, namespace="research"))
    withdrawn = RequestWithdrawn(revision=2, source=asked("two").source, cause="pod gone")
    (revoke,) = empty.observe(subjects.request(RequestId("two")), withdrawn)
    assert isinstance(revoke.message, Revoke)

    (pending,) = empty.request(high("service", WHOLE))
    assert isinstance(pending.message, Pending)
    assert said(empty.land_all([revoke, pending])) == [revoke.message, pending.message]
    again = said(empty.land_all(empty.gone(ending)))
    assert [type(each) for each in again] == [Closed, Grant, Released, WaitOver]
    assert [each.after for each in again if isinstance(each, Grant)] == [()]


def test_a_grant_that_is_not_sent_yet_is_decided_anew_when_a_guarantee_has_less_to_spare(empty):
    """It waits behind another one of its node; meanwhile a third pod of the guaranteed namespace ends."""
    start(empty, gpus=2)
    guarantee(empty, "research", 1)
    for name in ("one", "two", "three"):
        run(empty, low(name, HALF, namespace="research"))
    run(empty, high("first", HALF, namespace="shop"))
    (service,) = empty.request(high("service", HALF, namespace="shop"))
    assert service.message.evict
    assert empty.request(high("second", HALF, namespace="shop")) == []
    ctx = empty.allocator.ctx
    (other,) = [
        n for n in ("one", "two", "three") if not {*ctx.facts.allocations_of[RequestId(n)]} & {*ctx.sparing.taken}
    ]
    withdrawn = RequestWithdrawn(revision=2, source=asked(other).source, cause="pod gone")
    ended = empty.observe(subjects.request(RequestId(other)), withdrawn)
    written = said(empty.land_all([service, *ended]))
    assert [each.booking.request for each in written if isinstance(each, Grant)] == ["service"]
    assert [each.booking.request for each in written if isinstance(each, Revoke)] == [other]
    assert RequestId("second") in ctx.queue


@pytest.mark.parametrize("set_late", [False, True])
def test_a_grant_without_an_answer_does_not_fill_a_guarantee(empty, set_late):
    """Of a namespace that is guaranteed one, one runs and one is granted: refused, it would have lost both."""
    start(empty, nodes=2)
    if not set_late:
        guarantee(empty, "research", 1)
    first = run(empty, low("one", WHOLE, namespace="research"))
    (grant,) = empty.request(high("two", WHOLE, namespace="research"))
    if set_late:
        guarantee(empty, "research", 1)
    (pending,) = empty.request(high("service", WHOLE))
    assert isinstance(pending.message, Pending)

    assert said(empty.land_all([grant, pending])) == [grant.message, pending.message]
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = [each for each in said(tick(empty, 10)) if isinstance(each, Grant)]
    assert (promise.booking.request, promise.after) == ("service", (first.booking.allocation,))


def test_a_grant_that_was_refused_has_cost_nobody_a_guarantee(empty):
    """Another allocator's word came first: what runs is all that the namespace has, and stays."""
    start(empty, nodes=2)
    guarantee(empty, "research", 1)
    run(empty, low("one", WHOLE, namespace="research"))
    (grant,) = empty.request(low("two", WHOLE, namespace="research"))
    (pending,) = empty.request(high("service", WHOLE))
    empty.land(pending)
    other = grant_of("elsewhere", grant.message.booking.node, high("elsewhere"))
    address = subjects.ledger(other.booking.node, other.booking.allocation)
    assert said(empty.land_all(empty.observe(address, other))) == []
    refused = WriteRefused(grant.operation, empty.allocator.ctx.facts.sequences[address.subject])
    (waits,) = said(empty.land_all(empty.handle(refused)))
    assert (type(waits), waits.request) == (Pending, "two")
    assert [each for each in said(tick(empty, 10)) if isinstance(each, Grant)] == []
    assert list(empty.allocator.ctx.sparing.leaving_of) == []


def test_places_that_a_group_has_only_found_do_not_fill_a_guarantee():
    """Its last member finds none, so no member is granted: the pod that runs would have gone for nothing."""
    bench = start(Bench(Allocator(RunId("r1"), SchedulerConfig(group_steps=1))), nodes=3)
    guarantee(bench, "research", 1)
    run(bench, low("one", WHOLE, namespace="research"))
    members = [
        low(f"job-{number}", WHOLE, namespace="research", group=PodGroup(name="job", size=3)) for number in range(3)
    ]
    for member in members[:-1]:
        bench.land_all(bench.request(member))
    written, ctx = bench.request(members[-1]), bench.allocator.ctx
    assert len(ctx.assumed) == 1
    (pending,) = bench.request(high("service", WHOLE))
    assert len(ctx.assumed) == 2
    assert isinstance(pending.message, Pending)

    written = everything(bench, [*written, pending])
    (grant,) = [each for each in written if isinstance(each, Grant)]
    assert (grant.booking.request, grant.after) == ("service", ())
    assert list(ctx.sparing.leaving_of) == []


def test_a_guarantee_that_is_set_late_counts_who_is_evicted(empty):
    """The same where one of the two is being evicted for somebody, and so not revoked yet."""
    start(empty, nodes=2)
    victim = run(empty, low("one", WHOLE, namespace="research"))
    run(empty, low("two", WHOLE, namespace="research", priority=1))
    promise = promise_for(empty, high("service", WHOLE))
    assert promise.after == (victim.booking.allocation,)
    guarantee(empty, "research", 1)
    assert [type(each) for each in said(empty.land_all(empty.request(high("second", WHOLE))))] == [Pending]


def test_who_has_left_a_guaranteed_namespace_is_not_remembered(bench):
    """Else the allocator grows with every pod of such a namespace that left after its quota was taken back."""
    guarantee(bench, "research", 1)
    leaving_of = bench.allocator.ctx.sparing.leaving_of
    grant = run(bench, high("one", WHOLE, namespace="research"))
    withdraw(bench, "one")
    assert list(leaving_of) == [grant.booking.allocation]
    bench.land_all(bench.observe(subjects.quota("research"), QuotaUnset(namespace="research")))
    bench.land_all(bench.gone(grant))
    assert list(leaving_of) == []


def test_the_own_namespace_is_not_protected_from_itself(bench):
    """A guarantee is against others."""
    guarantee(bench, "research", 1)
    victim = run(bench, low("one", WHOLE, namespace="research"))
    promise = promise_for(bench, high("service", WHOLE, namespace="research"))
    assert promise.after == (victim.booking.allocation,)


def test_victims_of_its_own_give_a_namespace_quota(bench):
    """
    tensor-fusion B7, the other half: one goes and one comes, and the limit is kept.

    A whole GPU is at least the 24 GB of node-b's, which would be within the limit beside what runs; on node-a it is 40.
    """
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    quota = QuotaSet(namespace="default", total=Amounts(memory_mib=70_000))
    bench.land_all(bench.observe(subjects.quota("default"), quota))
    whole = claim(profile=None)
    run(bench, msgspec.structs.replace(asked("theirs", claim(profile="4g.24gb")), namespace="research"))
    victim = run(bench, low("mine", whole))
    written = said(bench.land_all(bench.request(high("service", whole))))
    promises = [each for each in written if isinstance(each, Grant)]
    assert [promise.after for promise in promises] == [(victim.booking.allocation,)]


def test_a_place_that_others_have_yet_fills_no_guarantee(empty):
    """Its victims may stay: the running pod would have gone, and the namespace have nothing."""
    start(empty, nodes=2)
    guarantee(empty, "research", 1)
    theirs = run(empty, low("theirs", WHOLE))
    first = run(empty, low("one", WHOLE, namespace="research", priority=1))
    promised = promise_for(empty, high("two", WHOLE, namespace="research", priority=9))
    assert promised.after == (theirs.booking.allocation,)
    (pending,) = said(empty.land_all(empty.request(high("service", WHOLE, priority=5))))
    assert isinstance(pending, Pending)

    ends(empty, theirs)
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = [each for each in said(tick(empty, 10)) if isinstance(each, Grant)]
    assert (promise.booking.request, promise.after) == ("service", (first.booking.allocation,))


def sharing(bench: Bench, *, own: int) -> Grant:
    """A pod of a namespace that is guaranteed 20,000 MiB has a share of so many, another one that may go a GPU."""
    for name in ("node-a", "node-b"):
        bench.add_node(snapshot(name, (gpu_report(name, 0, mig=False),), modes=MODES))
    quota = QuotaSet(namespace="research", guaranteed=Amounts(memory_mib=20_000))
    bench.land_all(bench.observe(subjects.quota("research"), quota))
    run(bench, high("one", mps(own), namespace="research"))
    return run(bench, low("two", claim(profile=None), namespace="research"))


def test_a_share_that_is_made_smaller_fills_a_guarantee_by_what_it_becomes(empty):
    """It counts as before until its processes have ended: by then the other pod would be gone, for nothing."""
    victim = sharing(empty, own=30_000)
    adjusted(empty, "one", memory_mib=4_000)
    (pending,) = said(empty.land_all(empty.request(high("service", claim(profile=None)))))
    assert isinstance(pending, Pending)

    back = adjusted(empty, "one", memory_mib=20_000)
    answered(empty, back)
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = [each for each in said(tick(empty, 10)) if isinstance(each, Grant)]
    assert (promise.booking.request, promise.after) == ("service", (victim.booking.allocation,))


def test_a_share_that_is_made_larger_fills_a_guarantee_when_the_ledger_has_it(empty):
    """Its order may be refused, and the other pod would have gone for somebody else."""
    victim = sharing(empty, own=4_000)
    (grows,) = empty.handle(AdjustAsked(1, change("one", memory_mib=20_000)))
    (pending,) = empty.request(high("service", claim(profile=None)))
    assert isinstance(pending.message, Pending)
    empty.land_all([grows, pending])
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = [each for each in said(tick(empty, 10)) if isinstance(each, Grant)]
    assert (promise.booking.request, promise.after) == ("service", (victim.booking.allocation,))


def test_who_may_go_and_is_being_made_smaller_is_not_counted_twice(empty):
    """A pod would wait for ever for the place of one who may go, while that one is changed."""
    sharing(empty, own=20_000)
    empty.add_node(snapshot("node-c", (gpu_report("node-c", 0, mig=False),), modes=MODES))
    victim = run(empty, low("three", mps(30_000), namespace="research", priority=-1))
    adjusted(empty, "three", memory_mib=25_000)
    promise = promise_for(empty, high("service", claim(profile=None), priority=0))
    assert promise.after == (victim.booking.allocation,)


def test_an_order_to_evict_that_is_not_sent_yet_is_decided_anew_when_a_share_is_made_smaller(empty):
    """It waits behind another one of its node; meanwhile the namespace comes to have no more than it is guaranteed."""
    victim = sharing(empty, own=20_000)
    node = victim.booking.node
    empty.add_node(snapshot(node, tuple(gpu_report(node, n, mig=False) for n in range(2)), modes=MODES, generation=2))
    (first,) = empty.request(high("first", claim(profile=None)))
    assert first.message.booking.node == node
    assert empty.request(high("service", claim(profile=None))) == []
    assert {*empty.allocator.ctx.sparing.taken} == {victim.booking.allocation}
    smaller = empty.handle(AdjustAsked(1, change("one", memory_mib=4_000)))
    written = everything(empty, [first, *[each for each in smaller if isinstance(each, Write)]])
    assert [each.booking.request for each in written if isinstance(each, Grant)] == ["first", "one"]
    assert [each.request for each in written if isinstance(each, Pending)] == ["service"]
