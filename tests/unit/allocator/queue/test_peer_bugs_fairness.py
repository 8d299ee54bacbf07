"""Known faults of other systems in sharing a fleet out: one test each that shows they are not ours."""

import pytest
from factories.calls import calls_of
from factories.scheduling.allocator import (
    Bench,
    asked,
    claim,
    gpu_report,
    kinds,
    only,
    ready_of,
    restarted,
    snapshot,
    working_allocator,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write, WriteRefused
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod


@pytest.fixture
def pair(empty: Bench) -> Bench:
    """node-a is an A100-40GB and full, node-b an A30 whose profiles may serve instead."""
    empty.add_nodes("node-a")
    empty.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    return empty


WHOLE, HALF, SMALL = claim(profile="7g.40gb"), claim(profile="3g.20gb"), claim(profile="1g.5gb")


def pod(name: str, *claims, **more) -> msg.AllocationRequested:
    return replace(asked(name, *claims), **more)


def waits(bench: Bench, request: msg.AllocationRequested) -> bool:
    """A pod asks, and learns nothing but that it waits."""
    return kinds(bench.asks(request)) == [msg.Pending]


def end(bench: Bench, grant: msg.Grant) -> None:
    bench.withdraw(grant.booking.name)
    bench.words(bench.gone(grant))


def test_the_memory_of_the_node_is_given_back_with_the_pod(bench):
    """tensor-fusion #791: an overwritten note of a pod left its memory counted for ever."""

    def needs(name: str, memory_mib: int, **more) -> msg.AllocationRequested:
        return pod(name, SMALL, host=msg.HostNeeds(room=msg.HostRoom(memory_mib=memory_mib)), **more)

    host = msg.HostFacts(cpu_cores=64.0, memory_mib=8192, pods_free=110)
    bench.words(bench.observe(subjects.host("node-a"), host))
    for number in range(3):
        grant = bench.run(needs(f"p{number}", 6000))
        edited = needs(f"p{number}", 7000, revision=2)
        assert bench.words(bench.request(edited), but=msg.Pending) == []
        end(bench, grant)
    bench.run(needs("last", 8192))


@pytest.mark.parametrize("less", [40_960 * 835 // 989, 0])
def test_an_idle_gpu_counts_as_whole_whatever_was_reported_of_it_meanwhile(empty, less):
    """tensor-fusion #796, B5: a capacity of 989, then of 835, left 681 of an idle GPU, which never counted as whole."""
    whole = gpu_report("node-a", 0, mig=False)
    empty.add_node(snapshot("node-a", (whole,), modes=("exclusive", "mps")))
    share = claim(profile=None, modes=("mps",), memory_mib=2000, uid=1000)
    grant = empty.run(asked("tenant", share))
    for generation, gpu in enumerate((replace(whole, memory_mib=less), whole), start=2):
        empty.words(empty.pull(snapshot("node-a", (gpu,), modes=("exclusive", "mps"), generation=generation)))
    end(empty, grant)
    assert empty.allocator.ctx.cluster.namespace_usage.used("default").memory_mib == 0
    empty.run(asked("whole", claim(profile=None)))


def test_what_was_released_is_not_remembered(bench):
    """tensor-fusion B9: its guard against a double release grew with every pod that ever was."""
    ctx = bench.allocator.ctx

    def remembered() -> int:
        kept = (ctx.cluster.booked(), ctx.assumed, ctx.committing, ctx.undecided, ctx.sparing.look, ctx.moves.phases)
        return sum(len(each) for each in (*kept, ctx.moves.stays_since, ctx.gangs.member_of, ctx.facts.promises))

    before = remembered()
    for number in range(20):
        end(bench, bench.bound(f"p{number}", SMALL))
    assert remembered() == before


def test_a_decision_costs_the_same_among_a_hundred_times_as_many_gpus():
    """tensor-fusion B10: each decision copied the whole store, twice."""

    def calls(nodes: int) -> int:
        bench = working_allocator()
        bench.add_nodes(*(f"node-{number}" for number in range(nodes)))
        bench.land_all(bench.request(asked("warm", SMALL)))
        return calls_of(lambda: bench.request(asked("one", SMALL)))

    assert calls(200) < 1.2 * calls(2)


def returning(name: str, *claims) -> msg.AllocationRequested:
    return pod(name, *claims, leeway=msg.Leeway(substitute="return"))


def moves(said: list) -> list[msg.Grant]:
    return [each for each in only(msg.Grant, said) if each.evict]


def test_who_may_be_moved_back_is_looked_at_a_few_at_a_time():
    """mig-adapter 7: with every message about any pod it went through all nodes and all pods."""

    def calls(pods: int) -> int:
        bench = working_allocator()
        bench.add_nodes("node-a")
        bench.add_node(snapshot("node-b", tuple(gpu_report("node-b", n, model="a30-24gb") for n in range(pods))))
        bench.run(asked("full", WHOLE))
        for number in range(pods):
            bench.run(returning(f"web{number}-1", claim(profile="4g.20gb")))
        bench.passes(700, step=50)
        bench.now += 1
        return calls_of(lambda: bench.handle(Ticked()))

    assert calls(40) < 1.3 * calls(4)


def test_a_place_whose_slice_could_not_be_made_is_free_again(bench):
    """tensor-fusion #479: what was reserved leaked when a later step of the same pod failed."""
    grant = bench.granted("one", WHOLE)
    assert kinds(bench.words(bench.fails(grant, "no such device"), but=msg.Pending)) == [msg.Revoke]
    bench.withdraw("one")
    assert kinds(bench.words(bench.gone(grant))) == [msg.Closed, msg.Released]
    bench.granted("two", WHOLE)


def test_a_place_that_somebody_else_booked_first_is_not_booked_again(bench):
    """tensor-fusion #365: what was chosen was not checked again when it was booked, and a GPU was given twice."""
    (mine,) = [each for each in bench.request(asked("one", WHOLE)) if isinstance(each, Write)]
    other = {"allocation": AllocationId("other_r9_1"), "request": RequestId("other")}
    theirs = replace(mine.message, booking=replace(mine.message.booking, **other))
    bench.handle(WriteRefused(mine.operation, next(bench.sequence) + 1))
    (told,) = bench.words(bench.reads(theirs))
    assert (type(told), told.request) == (msg.Pending, "one")


def test_what_is_said_to_be_gone_twice_frees_nothing_twice(bench):
    """tensor-fusion #218, #179: a second release of the same pod made the GPU larger than it is."""
    grant = bench.bound("one", HALF)
    end(bench, grant)
    again = bench.bound("two", WHOLE)
    assert bench.words(bench.gone(grant)) == []
    assert waits(bench, asked("three", SMALL))
    assert again.booking.devices[0].profile == "7g.40gb"


def test_a_node_that_is_not_heard_of_keeps_its_pods(bench):
    """tensor-fusion #656: when the agent of a node died its pods were recreated again and again."""
    bench.bound("one", HALF)
    said = bench.words(bench.pull(snapshot("node-a", (gpu_report("node-a", 0),), generation=2), stale=True))
    assert [*said, *bench.passes(3600, step=60)] == []


def test_a_restart_keeps_every_span_where_it_was(bench):
    """tensor-fusion B1: at every start of the leader the slots were forgotten and guessed from the UID."""
    first, goes, last = (bench.bound(name, SMALL) for name in ("z", "m", "a"))
    end(bench, goes)
    after = restarted(bench)
    spans = {(grant.booking.devices[0].start, grant.booking.devices[0].size) for grant in (first, last)}
    new = [after.bound(f"new{number}", SMALL).booking.devices[0] for number in range(5)]
    assert not spans & {(device.start, device.size) for device in new}
    assert len({device.start for device in new}) == 5


def test_the_order_names_the_span_that_was_chosen(bench):
    """tensor-fusion B2: the slot was chosen and never sent, so that the node put the instance elsewhere."""
    first, second = (bench.granted(name, HALF).booking.devices[0] for name in ("one", "two"))
    spans = sorted((each.profile, each.start, each.size) for each in (first, second))
    assert spans == [("3g.20gb", 0, 4), ("3g.20gb", 4, 4)]


def test_a_full_gpu_is_not_chosen_again_and_again(empty):
    """tensor-fusion B3: a pinned profile was not compared with what is free, so the fullest GPU was tried for ever."""
    empty.add_nodes("node-a", gpus=2)
    grants = [empty.bound(f"p{number}", HALF) for number in range(4)]
    assert {grant.booking.devices[0].gpu for grant in grants} == {"GPU-node-a-0", "GPU-node-a-1"}
    assert waits(empty, asked("late", HALF))


def test_one_pod_that_ends_takes_nobody_elses_name_from_the_gpu(bench):
    """tensor-fusion B4: the last pod of one workload erased all others of its namespace from what the GPU has."""
    kept, goes = bench.bound("kept", SMALL), bench.bound("goes", SMALL)
    end(bench, goes)
    assert dict.fromkeys(bench.allocator.ctx.cluster.booked()) == {kept.booking.allocation: None}


def test_a_tenant_may_be_kept_from_being_preempted_by_others(bench):
    """tensor-fusion #551: its preemption could not be limited to the own tenant, nor turned off."""
    bench.words(bench.observe(subjects.quota("lab"), msg.QuotaSet(namespace="lab", guaranteed=msg.Amounts(gpus=1))))
    bench.run(pod("theirs", WHOLE, namespace="lab", leeway=msg.Leeway(preemptible=True)))
    assert waits(bench, pod("other", WHOLE, namespace="den", priority=9))
    own = bench.words(bench.request(pod("own", WHOLE, namespace="lab", priority=9)), but=msg.Pending)
    assert kinds(own) == [msg.Grant, msg.EvictionOrdered]


def test_the_quota_counts_what_is_given_and_not_what_is_asked_for(bench):
    """HAMi §2.4: it checks the raw request, and charges the size of the profile that it became."""
    bench.limit(memory_mib=8000)
    (pending,) = bench.asks(asked("sized", claim(profile=None, memory_mib=6000)))
    assert pending.reasons[0].reason is WaitReason.QUOTA_EXCEEDED


def test_what_is_freed_is_given_in_the_same_moment(bench):
    """HAMi #1368, InstaSlice: capacity lay idle for minutes, for only a timer looked at the queue."""
    first = bench.bound("first", WHOLE)
    assert waits(bench, asked("second", WHOLE))
    bench.withdraw("first")
    assert [each.booking.name for each in only(msg.Grant, bench.words(bench.gone(first)))] == ["second"]


def test_a_place_of_a_pod_that_never_started_blocks_nobody(bench):
    """HAMi #2923: what was reserved for a pod that was never bound held its GPU after the pod was gone."""
    grant = bench.granted("never", WHOLE)
    assert kinds(bench.withdraw("never")) == [msg.Revoke]
    bench.words(bench.gone(grant))
    bench.granted("next", WHOLE)


def test_a_pod_that_is_ending_has_its_place_also_after_a_restart(bench):
    """HAMi #2812: a restarted scheduler did not count pods that were terminating, and gave their devices away."""
    ending = bench.bound("ending", WHOLE)
    bench.withdraw("ending")
    after = restarted(bench)
    assert waits(after, asked("next", SMALL))
    assert kinds(after.allocator.ctx.facts.ledger.values()) == [msg.Revoke]
    assert [each.booking.name for each in only(msg.Grant, after.words(after.gone(ending)))] == ["next"]


def test_a_pod_with_a_container_that_needs_no_gpu_is_moved_back(pair):
    """mig-adapter 5: comparing a container without MIG with its original ended the adapter."""
    ask = parse_pod({"main.sluice.dev/profile": "1g.5gb"}, (ContainerRequest("sidecar"), ContainerRequest("main")))
    assert isinstance(ask, PodRequest), ask
    assert [each.container for each in ask.claims] == ["main"]
    full = pair.bound("full", WHOLE)
    old = pair.run(returning("web-1", *ask.claims))
    assert old.booking.instead_of == "1g.5gb"
    end(pair, full)
    (kept,) = moves(pair.passes(700, step=10))
    assert (kept.booking.node, kept.after) == ("node-a", (old.booking.allocation,))


def test_a_pod_is_moved_back_when_all_that_it_asked_for_is_free(pair):
    """mig-adapter 8: of a pod with several profiles it looked at one only."""
    full = pair.bound("full", WHOLE)
    pair_of = (claim(profile="1g.5gb"), claim(container="second", profile="2g.10gb"))
    old = pair.run(returning("web-1", *pair_of))
    assert (old.booking.node, len(old.booking.devices)) == ("node-b", 2)
    end(pair, full)
    most = pair.bound("most", claim(profile="4g.20gb"))
    also = pair.bound("also", claim(profile="2g.10gb"))
    assert moves(pair.passes(1400, step=10)) == []
    end(pair, also)
    (kept,) = moves(pair.passes(700, step=10))
    assert [device.profile for device in kept.booking.devices] == ["1g.5gb", "2g.10gb"]
    assert most.booking.node == "node-a"


def test_a_new_instance_touches_no_other(bench):
    """mig-adapter 10: for one pod it had the whole node partitioned again, without a check for its users."""
    bench.bound("runs", SMALL)
    grant = bench.granted("new", HALF)
    assert kinds(bench.words(bench.ready(grant))) == [msg.Bound]
    assert ready_of(grant).devices[0].profile == "3g.20gb"
