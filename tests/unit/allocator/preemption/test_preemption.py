"""Preemption: who is evicted for whom, what is said, and what becomes of evictions that come to nothing."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    Bench,
    claim,
    gpu_report,
    snapshot,
)
from factories.scheduling.preemption import (
    HALF,
    WHOLE,
    evictions,
    high,
    low,
    outcome,
    promise_for,
    run,
    said,
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
def test_a_priority_above_its_namespaces_ceiling_evicts_nobody_else(bench, limited_first):
    """Any namespace could write 999999999 into an annotation, and have another team's pods evicted within seconds."""
    ceiling = msg.QuotaSet(namespace="red", priority_max=0)
    run(bench, low("batch", WHOLE, priority=0))
    greedy = high("greedy", WHOLE, priority=999_999_999, namespace="red", preempts=limited_first)
    if limited_first:
        bench.observe(subjects.quota("red"), ceiling)
    (pending,) = said(bench.land_all(bench.request(greedy)))
    assert isinstance(pending, msg.Pending)
    if not limited_first:
        bench.observe(subjects.quota("red"), ceiling)
        assert evictions(bench) == {}
        bench.land_all(bench.request(msgspec.structs.replace(greedy, preempts=True)))
        assert evictions(bench) == {}
    assert how_it_stands(bench.allocator.ctx, RequestId("greedy")).turn.priority == 0
    lifted = said(bench.land_all(bench.observe(subjects.quota("red"), msg.QuotaUnset(namespace="red"))))
    assert [type(each) for each in lifted if isinstance(each, msg.Grant)] == [msg.Grant]


def test_who_never_preempts_does_not_stand_for_others_who_ask_for_the_same(bench):
    """A more important pod behind it would wait for a place that it could have at once."""
    run(bench, low("batch", WHOLE))
    bench.land_all(bench.request(high("patient", WHOLE, priority=20, preempts=False)))
    promise = promise_for(bench, high("service", WHOLE, priority=10))
    assert (promise.booking.request, promise.evict) == ("service", True)


def test_an_operator_who_turns_it_off_sees_no_eviction():
    """tensor-fusion #551: people asked for such a switch. The rule `preemption` is for the whole fleet."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(preemption=False)))
    start(bench)
    run(bench, low("batch", WHOLE))
    (pending,) = said(bench.land_all(bench.request(high("service", WHOLE))))
    assert isinstance(pending, msg.Pending)


def test_the_least_important_goes_then_the_fewest_then_the_smallest(empty):
    """Three full GPUs: one important tenant, two small ones, one small one beside somebody who stays."""
    bench = empty
    bench.add_nodes("node-a", "node-b", "node-c")
    run(bench, low("important", WHOLE, priority=5))
    run(bench, low("left", claim(profile="4g.20gb"), priority=1))
    run(bench, low("right", HALF, priority=1))
    run(bench, low("alone", WHOLE, priority=1))

    assert promise_for(bench, high("service", WHOLE)).booking.node == "node-c"
    assert promise_for(bench, high("another", WHOLE)).booking.node == "node-b"
    assert evictions(bench).keys() == {"alone", "left", "right"}
    assert promise_for(bench, high("third", WHOLE)).booking.node == "node-a"


def test_only_those_who_are_in_the_way_go(bench):
    """Seven 1g on one GPU, a 3g is needed: four would be a waste of one, for three slots and a half are a 3g."""
    for number in range(7):
        run(bench, low(f"batch-{number}"))
    promise = promise_for(bench, high("service", claim(profile="2g.10gb")))
    assert len(promise.after) == 2


def test_the_cpu_of_the_victim_counts(bench):
    """A node whose CPU is all the victim's has room for a pod that needs as much."""
    facts = msg.HostFacts(cpu_cores=8.0, memory_mib=1 << 16, pods_free=1)
    bench.land_all(bench.observe(subjects.host("node-a"), facts))
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=8000, memory_mib=1 << 16))
    victim = run(bench, low("batch", WHOLE, host=needs))
    promise = promise_for(bench, high("service", WHOLE, host=needs))
    assert promise.after == (victim.booking.allocation,)
    assert bench.allocator.ctx.cluster.nodes["node-a"].cpu_milli == -8000


def found_after_a_wipe(bench: Bench, *asks) -> None:
    """The broker is wiped; these are asked for in the new life, and the node has a promise and whom it waits for."""
    victim = run(bench, low("batch", WHOLE))
    promise = promise_for(bench, high("service", WHOLE))
    bench.said.clear()
    known = [(subjects.request(RequestId(each.name)), each) for each in asks]
    bench.land_all(bench.read_all(*known, incarnation=Incarnation("900000")))
    there = (
        msg.SliceReport(booking=victim.booking, revision=1, state="ready", revoked=False),
        msg.SliceReport(
            booking=promise.booking, revision=1, state="planned", revoked=False, after=promise.after, evict=True
        ),
    )
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=there, generation=2))


def test_nobody_is_evicted_after_a_wipe_for_who_has_not_asked_again(bench):
    """The other pod has gone meanwhile, and its source not said so yet: a running pod would be evicted for nothing."""
    batch, service = low("batch", WHOLE), high("service", WHOLE)
    found_after_a_wipe(bench, batch)
    assert evictions(bench) == {}

    bench.passes(3.0)  # the same order was said before the wipe, just now
    bench.land_all(bench.request(service))
    assert evictions(bench) == {"batch": "its place is needed for default/service"}


def test_a_source_that_says_nothing_holds_nobody_up(bench):
    """An order without an answer is as good as one that is blocked."""
    run(bench, low("batch", WHOLE))
    promise = promise_for(bench, high("service", WHOLE))
    written = said(tick(bench, 121))
    assert [each.booking.allocation for each in written if isinstance(each, msg.Revoke)] == [promise.booking.allocation]


def test_who_was_blocked_is_left_alone_longer_each_time(bench):
    """One minute, then two: a budget that is used up is not asked again and again."""
    run(bench, low("batch", WHOLE))
    promise = promise_for(bench, high("service", WHOLE))
    tries = []
    for _ in range(430):
        for message in said(tick(bench, 1)):
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
    run(bench, low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    outcome(bench, "batch", msg.EvictionDone(request=RequestId("batch")))
    written = said(tick(bench, 1190))
    assert not [each for each in written if isinstance(each, msg.Revoke)]
    assert [type(each) for each in said(tick(bench, 30)) if isinstance(each, msg.Revoke)] == [msg.Revoke]


def ask(bench: Bench, **annotations: str):
    """Simulate a pod of one container with these keys of ours."""
    said = {f"sluice.dev/{key}": value for key, value in annotations.items()}
    return simulate(bench.allocator.ctx, PodAsked("default", said, (ContainerRequest("main"),)))[0]


def test_a_simulated_pod_has_the_priority_of_its_spec_and_evicts_only_if_it_may(empty):
    """A simulation would show that a pod waits, and the real one evicts another."""
    start(empty, nodes=1)
    run(empty, low("batch", WHOLE, priority=1))
    said = {"sluice.dev/profile": "7g.40gb"}
    pod = PodAsked("default", said, (ContainerRequest("main"),), priority=10)
    found = simulate(empty.allocator.ctx, pod)[0]
    assert [each.name for each in found.evicts] == ["batch"]
    assert isinstance(simulate(empty.allocator.ctx, replace(pod, preempts=False))[0], WouldWait)
    assert isinstance(
        simulate(empty.allocator.ctx, replace(pod, annotations=said | {"sluice.dev/priority": "1"}))[0], WouldWait
    ), "the annotation comes before the spec"


def test_a_simulated_preemption_is_the_real_one(empty):
    """The same function on the same facts: the place, and who goes for it; and asking evicts no pod."""
    start(empty, nodes=2)
    run(empty, low("important", WHOLE, priority=5))
    for number in range(4):
        run(empty, low(f"batch-{number}", priority=1))
    found = ask(empty, profile="7g.40gb", priority="10")
    assert [(each.name, each.priority, each.memory_mib) for each in found.evicts] == [
        (f"batch-{number}", 1, 4864) for number in range(4)
    ]
    assert evictions(empty) == {}

    promise = promise_for(empty, high("service", WHOLE))
    assert (promise.booking.node, promise.booking.devices) == (found.node, tuple(d.grant for d in found.devices))
    assert [each.request for each in victims_of(empty, promise)] == [each.name for each in found.evicts]


def victims_of(bench: Bench, promise: msg.Grant) -> list:
    return [bench.allocator.ctx.cluster.booking(each) for each in promise.after]


def test_who_waits_is_told_at_once_why_the_pod_before_it_cannot_go(bench):
    """It would read for minutes that somebody goes for it, beside a budget that forbids it."""
    run(bench, low("batch", WHOLE))
    promise_for(bench, high("service", WHOLE))
    tick(bench, 1.0)
    (pending,) = said(
        outcome(bench, "batch", msg.EvictionBlocked(request=RequestId("batch"), why="the budget allows none"))
    )
    assert isinstance(pending, msg.Pending)
    assert pending.request == "service"
    assert pending.message == (
        "its place on node-a is reserved and waits for default/batch (cannot be evicted: the budget allows none) "
        "to be evicted for it"
    )
    (pending,) = said(outcome(bench, "batch", msg.EvictionDone(request=RequestId("batch"))))
    assert isinstance(pending, msg.Pending)
    assert pending.message == "its place on node-a is reserved and waits for default/batch to be evicted for it"


def test_nobody_is_evicted_for_a_member_of_a_group(bench):
    """A job is granted together or not at all: one place of four would be somebody's for nothing."""
    run(bench, low("batch", WHOLE))
    writes = bench.land_all(bench.request(high("member", WHOLE, group=msg.PodGroup(name="job", size=1))))
    assert not [each for each in said(writes) if isinstance(each, msg.Grant)]


def test_a_namespace_at_its_limit_has_the_places_of_its_own(empty):
    """Its own less important pod goes; the pods of others, less important still, do not: they would be of no use."""
    start(empty, nodes=2)
    quota = msg.QuotaSet(namespace="default", total=msg.Amounts(gpus=1))
    empty.land_all(empty.observe(subjects.quota("default"), quota))
    run(empty, low("theirs", WHOLE, priority=-5, namespace="research"))
    victim = run(empty, low("mine", WHOLE, priority=1))
    simulated = ask(empty, profile="7g.40gb", priority="10")
    assert [each.name for each in simulated.evicts] == ["mine"]
    promises = [
        each for each in said(empty.land_all(empty.request(high("service", WHOLE)))) if isinstance(each, msg.Grant)
    ]
    assert [promise.after for promise in promises] == [(victim.booking.allocation,)]


def test_several_victims_on_one_gpu_make_one_place(bench):
    """tensor-fusion #547: victims on the same GPU add up."""
    victims = [run(bench, low(f"batch-{number}")) for number in range(7)]
    promise = promise_for(bench, high("service", WHOLE))
    assert set(promise.after) == {victim.booking.allocation for victim in victims}


def test_devices_of_several_gpus_of_one_node_come_together(empty):
    """tensor-fusion #520: two devices, two victims on two GPUs of one node."""
    start(empty, nodes=1, gpus=2)
    first, second = run(empty, low("one", WHOLE)), run(empty, low("two", WHOLE))
    promise = promise_for(empty, high("service", claim(profile="7g.40gb", gpus=2)))
    assert set(promise.after) == {first.booking.allocation, second.booking.allocation}


def test_one_gpu_that_is_freed_and_one_that_is_free_make_two(empty):
    """tensor-fusion #555: only one of the two has to be freed."""
    start(empty, nodes=1, gpus=2)
    victim = run(empty, low("one", WHOLE))
    promise = promise_for(empty, high("service", claim(profile="7g.40gb", gpus=2)))
    assert promise.after == (victim.booking.allocation,)
    assert {device.gpu for device in promise.booking.devices} == {"GPU-node-a-0", "GPU-node-a-1"}


def test_a_blocked_eviction_is_given_up_and_others_go(empty):
    """tensor-fusion #716, #767: no pod waits for ever for a victim that a disruption budget protects."""
    start(empty, nodes=2)
    run(empty, low("guarded", WHOLE))
    run(empty, low("other", WHOLE, priority=1))
    promise_for(empty, high("service", WHOLE))
    outcome(empty, "guarded", msg.EvictionBlocked(request=RequestId("guarded"), why="the budget allows none"))
    written = said(tick(empty, 119))
    assert not [each for each in written if isinstance(each, (msg.Revoke, msg.Grant))]

    written = said(tick(empty, 2))
    (revoke,) = [each for each in written if isinstance(each, msg.Revoke)]
    assert "could not be freed: default/guarded (cannot be evicted: the budget allows none)" in revoke.cause
    (grant,) = [each for each in written if isinstance(each, msg.Grant)]
    assert (grant.booking.node, grant.evict) == ("node-b", True)
    assert evictions(empty).keys() == {"other"}
