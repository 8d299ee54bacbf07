"""Preemption: the victims, what is published, and what becomes of evictions that come to nothing."""

import pytest
from factories.scheduling.allocator import Bench, claim, gpu_report, kinds, only, report_of, snapshot
from factories.scheduling.preemption import (
    HALF,
    WHOLE,
    blocked,
    evicted,
    evictions,
    high,
    low,
    promise_for,
    start,
    tick,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import Incarnation, RequestId, RunId
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.explain.status import PodAsked, WouldWait, how_it_stands, simulate


@pytest.mark.parametrize("limited_first", [True, False])
def test_a_priority_above_its_namespaces_ceiling_evicts_no_other_pod(bench, limited_first):
    """Any namespace could write 999999999 into an annotation, and have another team's pods evicted within seconds."""
    ceiling = msg.QuotaSet(namespace="red", priority_max=0)
    bench.run(low("batch", WHOLE, priority=0))
    greedy = high("greedy", WHOLE, priority=999_999_999, namespace="red", preempts=limited_first)
    if limited_first:
        bench.observe(subjects.quota("red"), ceiling)
    assert kinds(bench.asks(greedy)) == [msg.Pending]
    if not limited_first:
        bench.observe(subjects.quota("red"), ceiling)
        assert evictions(bench) == {}
        bench.asks(replace(greedy, preempts=True))
        assert evictions(bench) == {}
    assert how_it_stands(bench.allocator.ctx, RequestId("greedy")).turn.priority == 0
    lifted = bench.words(bench.observe(subjects.quota("red"), msg.QuotaUnset(namespace="red")))
    assert len(only(msg.Grant, lifted)) == 1


def test_who_never_preempts_does_not_stand_for_others_who_ask_for_the_same(bench):
    """A more important pod behind it would wait for a place that it could have at once."""
    bench.run(low("batch", WHOLE))
    bench.asks(high("patient", WHOLE, priority=20, preempts=False))
    assert promise_for(bench, high("service", WHOLE, priority=10)).booking.request == "service"


def test_an_operator_who_turns_it_off_sees_no_eviction():
    """tensor-fusion #551: people asked for such a switch. The rule `preemption` is for the whole fleet."""
    bench = start(Bench(Allocator(RunId("r1"), SchedulerConfig(preemption=False))))
    bench.run(low("batch", WHOLE))
    assert kinds(bench.asks(high("service", WHOLE))) == [msg.Pending]


def test_the_least_important_goes_then_the_fewest_then_the_smallest(empty):
    """Three full GPUs: one important tenant, two small ones, one small one beside one that stays."""
    empty.add_nodes("node-a", "node-b", "node-c")
    empty.run(low("important", WHOLE, priority=5))
    empty.run(low("left", claim(profile="4g.20gb"), priority=1))
    empty.run(low("right", HALF, priority=1))
    empty.run(low("alone", WHOLE, priority=1))
    assert promise_for(empty, high("service", WHOLE)).booking.node == "node-c"
    assert promise_for(empty, high("another", WHOLE)).booking.node == "node-b"
    assert evictions(empty).keys() == {"alone", "left", "right"}
    assert promise_for(empty, high("third", WHOLE)).booking.node == "node-a"


def test_only_those_who_are_in_the_way_go(bench):
    """Seven 1g on one GPU, a 3g is needed: four would be a waste of one, for three slots and a half are a 3g."""
    for number in range(7):
        bench.run(low(f"batch-{number}"))
    assert len(promise_for(bench, high("service", claim(profile="2g.10gb"))).after) == 2


def test_the_cpu_of_the_victim_counts(bench):
    """A node whose CPU is all the victim's has room for a pod that needs as much."""
    facts = msg.HostFacts(cpu_cores=8.0, memory_mib=1 << 16, pods_free=1)
    bench.land_all(bench.observe(subjects.host("node-a"), facts))
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=8000, memory_mib=1 << 16))
    victim = bench.run(low("batch", WHOLE, host=needs))
    promise = promise_for(bench, high("service", WHOLE, host=needs))
    assert promise.after == (victim.booking.allocation,)
    assert bench.allocator.ctx.cluster.nodes["node-a"].cpu_milli == -8000


def test_nobody_is_evicted_after_a_wipe_for_who_has_not_asked_again(bench):
    """The other pod has gone meanwhile, and its source not said so yet: a running pod would be evicted for nothing."""
    batch, service = low("batch", WHOLE), high("service", WHOLE)
    victim, promise = bench.run(batch), promise_for(bench, service)
    bench.said.clear()
    bench.land_all(bench.read_all((subjects.request(RequestId("batch")), batch), incarnation=Incarnation("900000")))
    planned = report_of(promise.booking, state="planned", after=promise.after, evict=True)
    there = report_of(victim.booking), planned
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=there, generation=2))
    assert evictions(bench) == {}

    bench.passes(3.0)  # the same order was said before the wipe, just now
    bench.asks(service)
    assert evictions(bench) == {"batch": "its place is needed for default/service"}


def test_a_silent_source_holds_up_no_other(bench):
    """An order without an answer is as good as one that is blocked."""
    bench.run(low("batch", WHOLE))
    promise = promise_for(bench, high("service", WHOLE))
    (revoke,) = only(msg.Revoke, tick(bench, 121))
    assert revoke.booking.allocation == promise.booking.allocation


def test_who_was_blocked_is_left_alone_longer_each_time(bench):
    """One minute, then two: a budget that is used up is not asked again and again."""
    bench.run(low("batch", WHOLE))
    promise = promise_for(bench, high("service", WHOLE))
    tries = []
    for _ in range(430):
        for message in tick(bench, 1):
            if isinstance(message, msg.Revoke):
                bench.land_all(bench.gone(promise))
            if isinstance(message, msg.Grant):
                promise = message
                tries.append(bench.now)
    assert len(tries) == 2
    pauses = [tries[0] - 120, tries[1] - tries[0] - 120]
    assert 60 <= pauses[0] < 75
    assert 118 <= pauses[1] < 135


def test_an_eviction_that_was_carried_out_is_waited_for(bench):
    """A pod that writes a checkpoint before it ends is not asked for nothing."""
    bench.run(low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    evicted(bench, "batch")
    assert only(msg.Revoke, tick(bench, 1190)) == []
    assert len(only(msg.Revoke, tick(bench, 30))) == 1


LARGE = PodAsked("default", {"sluice.dev/profile": "7g.40gb"}, (ContainerRequest("main"),), priority=10)


def simulated(bench: Bench, pod: PodAsked = LARGE):
    return simulate(bench.allocator.ctx, pod)[0]


def test_a_simulated_pod_has_the_priority_of_its_spec_and_evicts_only_if_it_may(empty):
    """A simulation would show that a pod waits, and the real one evicts another."""
    start(empty)
    empty.run(low("batch", WHOLE, priority=1))
    assert [each.name for each in simulated(empty).evicts] == ["batch"]
    assert isinstance(simulated(empty, replace(LARGE, preempts=False)), WouldWait)
    said = LARGE.annotations | {"sluice.dev/priority": "1"}  # comes before the spec's
    assert isinstance(simulated(empty, replace(LARGE, annotations=said)), WouldWait)


def test_a_simulated_preemption_is_the_real_one(empty):
    """The same function on the same facts: the place, and its victim; and asking evicts no pod."""
    start(empty, nodes=2)
    empty.run(low("important", WHOLE, priority=5))
    for number in range(4):
        empty.run(low(f"batch-{number}", priority=1))
    found = simulated(empty)
    assert [(each.name, each.priority, each.memory_mib) for each in found.evicts] == [
        (f"batch-{number}", 1, 4864) for number in range(4)
    ]
    assert evictions(empty) == {}

    promise = promise_for(empty, high("service", WHOLE))
    victims = [empty.allocator.ctx.cluster.booking(each) for each in promise.after]
    assert (promise.booking.node, promise.booking.devices) == (found.node, tuple(d.grant for d in found.devices))
    assert [each.request for each in victims] == [each.name for each in found.evicts]


def test_who_waits_is_told_at_once_why_the_pod_before_it_cannot_go(bench):
    """Its owner would read for minutes that a pod goes for it, beside a budget that forbids it."""
    bench.run(low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    tick(bench, 1.0)
    (pending,) = blocked(bench, "batch")
    assert pending.request == "service"
    assert pending.message == (
        "its place on node-a is reserved and waits for default/batch (cannot be evicted: the budget allows none) "
        "to be evicted for it"
    )
    (pending,) = evicted(bench, "batch")
    assert pending.message == "its place on node-a is reserved and waits for default/batch to be evicted for it"


def test_no_pod_is_evicted_for_a_member_of_a_group(bench):
    """A job is granted together or not at all: one place of four would cost a pod for nothing."""
    bench.run(low("batch", WHOLE))
    assert not only(msg.Grant, bench.asks(high("member", WHOLE, group=msg.PodGroup(name="job", size=1))))


def test_a_namespace_at_its_limit_has_the_places_of_its_own(empty):
    """Its own less important pod goes; the pods of others, less important still, do not: they would be of no use."""
    start(empty, nodes=2)
    empty.limit(gpus=1)
    empty.run(low("theirs", WHOLE, priority=-5, namespace="research"))
    victim = empty.run(low("mine", WHOLE, priority=1))
    assert [each.name for each in simulated(empty).evicts] == ["mine"]
    assert promise_for(empty, high("service", WHOLE)).after == (victim.booking.allocation,)


def test_several_victims_on_one_gpu_make_one_place(bench):
    """tensor-fusion #547: victims on the same GPU add up."""
    victims = [bench.run(low(f"batch-{number}")) for number in range(7)]
    promise = promise_for(bench, high("service", WHOLE))
    assert set(promise.after) == {victim.booking.allocation for victim in victims}


def test_devices_of_several_gpus_of_one_node_come_together(empty):
    """tensor-fusion #520: two devices, two victims on two GPUs of one node."""
    start(empty, gpus=2)
    first, second = empty.run(low("one", WHOLE)), empty.run(low("two", WHOLE))
    promise = promise_for(empty, high("service", claim(profile="7g.40gb", gpus=2)))
    assert set(promise.after) == {first.booking.allocation, second.booking.allocation}


def test_one_gpu_that_is_freed_and_one_that_is_free_make_two(empty):
    """tensor-fusion #555: only one of the two has to be freed."""
    start(empty, gpus=2)
    victim = empty.run(low("one", WHOLE))
    promise = promise_for(empty, high("service", claim(profile="7g.40gb", gpus=2)))
    assert promise.after == (victim.booking.allocation,)
    assert {device.gpu for device in promise.booking.devices} == {"GPU-node-a-0", "GPU-node-a-1"}


def test_a_blocked_eviction_is_given_up_and_others_go(empty):
    """tensor-fusion #716, #767: no pod waits for ever for a victim that a disruption budget protects."""
    start(empty, nodes=2)
    empty.run(low("guarded", WHOLE))
    empty.run(low("other", WHOLE, priority=1))
    promise_for(empty, high("service", WHOLE))
    blocked(empty, "guarded")
    assert not only((msg.Revoke, msg.Grant), tick(empty, 119))

    written = tick(empty, 2)
    (revoke,), (grant,) = only(msg.Revoke, written), only(msg.Grant, written)
    assert "could not be freed: default/guarded (cannot be evicted: the budget allows none)" in revoke.cause
    assert (grant.booking.node, grant.evict) == ("node-b", True)
    assert evictions(empty).keys() == {"other"}
