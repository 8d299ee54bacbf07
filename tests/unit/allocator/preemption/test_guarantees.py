"""Evictions where namespaces are guaranteed something, or may have only so much."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, kinds, messages, only, snapshot
from factories.scheduling.preemption import HALF, WHOLE, high, low, promise_for, start, tick
from factories.scheduling.resize import MODES, adjusted, change, mps
from factories.scheduling.resize import said as answered

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice_allocator.core.events import AdjustAsked


def guarantee(bench: Bench, **least: int) -> None:
    """The namespace research is sure of so much."""
    quota = msg.QuotaSet(namespace="research", guaranteed=msg.Amounts(**least))
    bench.land_all(bench.observe(subjects.quota("research"), quota))


def test_another_namespace_keeps_what_it_is_guaranteed(empty):
    """tensor-fusion #551: of two pods of a namespace that is guaranteed one, one may go; the other may not."""
    start(empty, nodes=2)
    guarantee(empty, gpus=1)
    empty.run(low("one", WHOLE, namespace="research"))
    empty.run(low("two", WHOLE, namespace="research"))
    promise_for(empty, high("service", WHOLE))
    assert kinds(empty.asks(high("second", WHOLE))) == [msg.Pending]


def test_an_unsent_grant_is_decided_again_when_a_guarantee_has_less_to_spare(empty):
    """It waits behind another one of its node; meanwhile a third pod of the guaranteed namespace ends."""
    start(empty, gpus=2)
    guarantee(empty, gpus=1)
    for name in ("one", "two", "three"):
        empty.run(low(name, HALF, namespace="research"))
    empty.run(high("first", HALF, namespace="shop"))
    (service,) = empty.request(high("service", HALF, namespace="shop"))
    assert service.message.evict
    assert empty.request(high("second", HALF, namespace="shop")) == []
    ctx = empty.allocator.ctx
    (other,) = [
        n for n in ("one", "two", "three") if not {*ctx.facts.allocations_of[RequestId(n)]} & {*ctx.sparing.taken}
    ]
    ended = empty.ends(other)
    written = messages(empty.land_all([service, *ended]))
    assert [each.booking.request for each in written if isinstance(each, msg.Grant)] == ["service"]
    assert [each.booking.request for each in written if isinstance(each, msg.Revoke)] == [other]
    assert RequestId("second") in ctx.queue


@pytest.mark.parametrize("set_late", [False, True])
def test_a_grant_without_an_answer_does_not_fill_a_guarantee(empty, set_late):
    """Of a namespace that is guaranteed one, one runs and one is granted: refused, it would have lost both."""
    start(empty, nodes=2)
    if not set_late:
        guarantee(empty, gpus=1)
    first = empty.run(low("one", WHOLE, namespace="research"))
    (grant,) = empty.request(high("two", WHOLE, namespace="research"))
    if set_late:
        guarantee(empty, gpus=1)
    (pending,) = empty.request(high("service", WHOLE))
    assert isinstance(pending.message, msg.Pending)

    assert messages(empty.land_all([grant, pending])) == [grant.message, pending.message]
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = only(msg.Grant, tick(empty, 10))
    assert (promise.booking.request, promise.after) == ("service", (first.booking.allocation,))


def test_a_guarantee_that_is_set_late_counts_who_is_evicted(empty):
    """The same where one of the two is being evicted for another request, and so not revoked yet."""
    start(empty, nodes=2)
    victim = empty.run(low("one", WHOLE, namespace="research"))
    empty.run(low("two", WHOLE, namespace="research", priority=1))
    assert promise_for(empty, high("service", WHOLE)).after == (victim.booking.allocation,)
    guarantee(empty, gpus=1)
    assert kinds(empty.asks(high("second", WHOLE))) == [msg.Pending]


def test_who_has_left_a_guaranteed_namespace_is_not_remembered(bench):
    """Else the allocator grows with every pod of such a namespace that left after its quota was taken back."""
    guarantee(bench, gpus=1)
    leaving_of = bench.allocator.ctx.sparing.leaving_of
    grant = bench.run(high("one", WHOLE, namespace="research"))
    bench.withdraw("one")
    assert list(leaving_of) == [grant.booking.allocation]
    bench.land_all(bench.observe(subjects.quota("research"), msg.QuotaUnset(namespace="research")))
    bench.land_all(bench.gone(grant))
    assert list(leaving_of) == []


def test_the_own_namespace_is_not_protected_from_itself(bench):
    guarantee(bench, gpus=1)
    victim = bench.run(low("one", WHOLE, namespace="research"))
    assert promise_for(bench, high("service", WHOLE, namespace="research")).after == (victim.booking.allocation,)


def test_victims_of_its_own_give_a_namespace_quota(bench):
    """tensor-fusion B7, the other half: one goes and one comes, and the limit is kept.

    A whole GPU is at least the 24 GB of node-b's, which would be within the limit beside what runs; on node-a it is 40.
    """
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    bench.limit(memory_mib=70_000)
    whole = claim(profile=None)
    bench.run(msgspec.structs.replace(asked("theirs", claim(profile="4g.24gb")), namespace="research"))
    victim = bench.run(low("mine", whole))
    assert promise_for(bench, high("service", whole)).after == (victim.booking.allocation,)


def sharing(bench: Bench, *, own: int) -> msg.Grant:
    """A pod of a namespace that is guaranteed 20,000 MiB has a share of so many, another one that may go a GPU."""
    for name in ("node-a", "node-b"):
        bench.add_node(snapshot(name, (gpu_report(name, 0, mig=False),), modes=MODES))
    guarantee(bench, memory_mib=20_000)
    bench.run(high("one", mps(own), namespace="research"))
    return bench.run(low("two", claim(profile=None), namespace="research"))


def test_a_share_that_is_made_smaller_fills_a_guarantee_by_what_it_becomes(empty):
    """It counts as before until its processes have ended: by then the other pod would be gone, for nothing."""
    victim = sharing(empty, own=30_000)
    adjusted(empty, "one", memory_mib=4_000)
    assert kinds(empty.asks(high("service", claim(profile=None)))) == [msg.Pending]
    answered(empty, adjusted(empty, "one", memory_mib=20_000))
    assert list(empty.allocator.ctx.sparing.leaving_of) == []
    (promise,) = only(msg.Grant, tick(empty, 10))
    assert (promise.booking.request, promise.after) == ("service", (victim.booking.allocation,))


def test_who_may_go_and_is_being_made_smaller_is_not_counted_twice(empty):
    """A pod would wait for ever for the place of one who may go, while that one is changed."""
    sharing(empty, own=20_000)
    empty.add_node(snapshot("node-c", (gpu_report("node-c", 0, mig=False),), modes=MODES))
    victim = empty.run(low("three", mps(30_000), namespace="research", priority=-1))
    adjusted(empty, "three", memory_mib=25_000)
    promise = promise_for(empty, high("service", claim(profile=None), priority=0))
    assert promise.after == (victim.booking.allocation,)


def test_an_unsent_order_to_evict_is_decided_again_when_a_share_is_made_smaller(empty):
    """It waits behind another one of its node; meanwhile the namespace comes to have no more than it is guaranteed."""
    victim = sharing(empty, own=20_000)
    node = victim.booking.node
    empty.add_node(snapshot(node, tuple(gpu_report(node, n, mig=False) for n in range(2)), modes=MODES, generation=2))
    (first,) = empty.request(high("first", claim(profile=None)))
    assert first.message.booking.node == node
    assert empty.request(high("service", claim(profile=None))) == []
    assert {*empty.allocator.ctx.sparing.taken} == {victim.booking.allocation}
    smaller = empty.handle(AdjustAsked(1, change("one", memory_mib=4_000)))
    written = empty.words([first, *smaller])
    assert [each.booking.request for each in written if isinstance(each, msg.Grant)] == ["first", "one"]
    assert [each.request for each in written if isinstance(each, msg.Pending)] == ["service"]


def test_victims_of_others_give_a_namespace_no_quota(bench):
    """tensor-fusion B7: what is freed of another namespace does not count for the preemptor's limit."""
    bench.limit(gpus=1)
    bench.run(low("theirs", claim(profile="4g.20gb"), namespace="research"))
    bench.run(low("mine", HALF, priority=20))
    assert kinds(bench.asks(high("service", claim(profile="4g.20gb")))) == [msg.Pending]
