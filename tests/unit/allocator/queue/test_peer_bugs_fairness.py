"""Known faults of other systems in sharing a fleet out: one test each that shows they are not ours."""

import msgspec
import pytest
from factories.calls import calls_of
from factories.scheduling.allocator import (
    Bench,
    asked,
    claim,
    gpu_report,
    ready_of,
    restarted,
    snapshot,
    working_allocator,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write, WriteRefused
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod


def report(bench: Bench, *gpus, stale: bool = False, generation: int = 2) -> list:
    """The inventory of node-a has changed."""
    seen = snapshot("node-a", gpus, generation=generation)
    return all_of(bench, bench.pull(seen, stale=stale))


@pytest.fixture
def pair(empty: Bench) -> Bench:
    """node-a is an A100-40GB and full, node-b an A30 whose profiles may serve instead."""
    empty.add_nodes("node-a")
    empty.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    return empty


WHOLE, HALF, SMALL = claim(profile="7g.40gb"), claim(profile="3g.20gb"), claim(profile="1g.5gb")


def all_of(bench: Bench, said: list) -> list:
    """What is written when everything lands, without waiting words."""
    return bench.words(said, but=msg.Pending)


def pod(name: str, *claims, **more) -> msg.AllocationRequested:
    return msgspec.structs.replace(asked(name, *claims), **more)


def bound(bench: Bench, message: msg.AllocationRequested) -> msg.Grant:
    (grant,) = [each for each in all_of(bench, bench.request(message)) if isinstance(each, msg.Grant)]
    all_of(bench, bench.ready(grant))
    return grant


def withdraw(bench: Bench, name: str) -> list:
    return all_of(bench, bench.ends(name))


def end(bench: Bench, grant: msg.Grant) -> list:
    return withdraw(bench, grant.booking.name) + all_of(bench, bench.gone(grant))


def passes(bench: Bench, seconds: float, step: float = 10.0) -> list:
    landed = []
    for _ in range(round(seconds / step)):
        bench.now += step
        landed += all_of(bench, bench.handle(Ticked()))
    return landed


def test_the_memory_of_the_node_is_given_back_with_the_pod(bench):
    """tensor-fusion #791: an overwritten note of a pod left its memory counted for ever."""
    host = msg.HostFacts(cpu_cores=64.0, memory_mib=8192, pods_free=110)
    all_of(bench, bench.observe(subjects.host("node-a"), host))
    needs = msg.HostNeeds(room=msg.HostRoom(memory_mib=6000))
    for number in range(3):
        grant = bound(bench, pod(f"p{number}", SMALL, host=needs))
        edited = pod(f"p{number}", SMALL, host=msg.HostNeeds(room=msg.HostRoom(memory_mib=7000)), revision=2)
        assert all_of(bench, bench.request(edited)) == []
        end(bench, grant)
    assert isinstance(
        bound(bench, pod("last", SMALL, host=msg.HostNeeds(room=msg.HostRoom(memory_mib=8192)))), msg.Grant
    )


@pytest.mark.parametrize("less", [40_960 * 835 // 989, 0])
def test_an_idle_gpu_counts_as_whole_whatever_was_reported_of_it_meanwhile(empty, less):
    """tensor-fusion #796, B5: a capacity of 989, then of 835, left 681 of an idle GPU, which never counted as whole."""
    whole = gpu_report("node-a", 0, mig=False)
    empty.add_node(snapshot("node-a", (whole,), modes=("exclusive", "mps")))
    share = claim(profile=None, modes=("mps",), memory_mib=2000, uid=1000)
    grant = bound(empty, asked("tenant", share))
    seen = (msgspec.structs.replace(whole, memory_mib=less), whole)
    for generation, gpu in enumerate(seen, start=2):
        shown = snapshot("node-a", (gpu,), modes=("exclusive", "mps"), generation=generation)
        all_of(empty, empty.pull(shown))
    end(empty, grant)
    assert empty.allocator.ctx.cluster.namespace_usage.used("default").memory_mib == 0
    assert isinstance(bound(empty, asked("whole", claim(profile=None))), msg.Grant)


def test_what_was_released_is_not_remembered(bench):
    """tensor-fusion B9: its guard against a double release grew with every pod that ever was."""
    ctx = bench.allocator.ctx

    def remembered() -> int:
        kept = (ctx.cluster.booked(), ctx.assumed, ctx.committing, ctx.undecided, ctx.sparing.look, ctx.moves.phases)
        return sum(len(each) for each in (*kept, ctx.moves.stays_since, ctx.gangs.member_of, ctx.facts.promises))

    before = remembered()
    for number in range(20):
        end(bench, bound(bench, asked(f"p{number}", SMALL)))
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
    return [each for each in said if isinstance(each, msg.Grant) and each.evict]


def test_who_may_be_moved_back_is_looked_at_a_few_at_a_time():
    """mig-adapter 7: with every word about any pod it went through all nodes and all pods."""

    def calls(pods: int) -> int:
        bench = working_allocator()
        bench.add_nodes("node-a")
        bench.add_node(snapshot("node-b", tuple(gpu_report("node-b", n, model="a30-24gb") for n in range(pods))))
        bound(bench, asked("full", WHOLE))
        for number in range(pods):
            bound(bench, returning(f"web{number}-1", claim(profile="4g.20gb")))
        passes(bench, 700, step=50)
        bench.now += 1
        return calls_of(lambda: bench.handle(Ticked()))

    assert calls(40) < 1.3 * calls(4)


def test_a_place_whose_slice_could_not_be_made_is_free_again(bench):
    """tensor-fusion #479: what was reserved leaked when a later step of the same pod failed."""
    grant = bench.granted("one", WHOLE)
    (revoke,) = all_of(bench, bench.fails(grant, "no such device"))
    assert isinstance(revoke, msg.Revoke)
    withdraw(bench, "one")
    closed, released = all_of(bench, bench.gone(grant))
    assert (type(closed), type(released)) == (msg.Closed, msg.Released)
    assert isinstance(bench.granted("two", WHOLE), msg.Grant)


def test_a_place_that_somebody_else_booked_first_is_not_booked_again(bench):
    """tensor-fusion #365: what was chosen was not checked again when it was booked, and a GPU was given twice."""
    (mine,) = [each for each in bench.request(asked("one", WHOLE)) if isinstance(each, Write)]
    theirs = msg.Grant(
        revision=1,
        incarnation=mine.message.incarnation,
        booking=msgspec.structs.replace(
            mine.message.booking, allocation=AllocationId("other_r9_1"), request=RequestId("other")
        ),
    )
    sequence = next(bench.sequence)
    bench.handle(WriteRefused(mine.operation, sequence + 1))
    said = [write.message for write in bench.land_all(bench.reads(theirs))]
    assert [(type(each), each.request) for each in said] == [(msg.Pending, "one")]


def test_what_is_said_to_be_gone_twice_frees_nothing_twice(bench):
    """tensor-fusion #218, #179: a second release of the same pod made the GPU larger than it is."""
    grant = bound(bench, asked("one", HALF))
    end(bench, grant)
    again = bound(bench, asked("two", WHOLE))
    assert all_of(bench, bench.gone(grant)) == []
    assert all_of(bench, bench.request(asked("three", SMALL))) == []
    assert again.booking.devices[0].profile == "7g.40gb"


def test_a_node_that_is_not_heard_of_keeps_its_pods(bench):
    """tensor-fusion #656: when the agent of a node died its pods were recreated again and again."""
    bound(bench, asked("one", HALF))
    said = report(bench, gpu_report("node-a", 0), stale=True)
    assert (said, passes(bench, 3600, step=60)) == ([], [])


def test_a_restart_keeps_every_span_where_it_was(bench):
    """tensor-fusion B1: at every start of the leader the slots were forgotten and guessed from the UID."""
    grants = [bound(bench, asked(name, SMALL)) for name in ("z", "m", "a")]
    end(bench, grants[1])
    after = restarted(bench)
    spans = {(grant.booking.devices[0].start, grant.booking.devices[0].size) for grant in (grants[0], grants[2])}
    new = [bound(after, asked(f"new{number}", SMALL)).booking.devices[0] for number in range(5)]
    assert not spans & {(device.start, device.size) for device in new}
    assert len({device.start for device in new}) == 5


def test_the_order_names_the_span_that_was_chosen(bench):
    """tensor-fusion B2: the slot was chosen and never sent, so that the node put the instance elsewhere."""
    first, second = (bench.granted(name, HALF).booking.devices[0] for name in ("one", "two"))
    assert sorted([(first.profile, first.start, first.size), (second.profile, second.start, second.size)]) == [
        ("3g.20gb", 0, 4),
        ("3g.20gb", 4, 4),
    ]


def test_a_full_gpu_is_not_chosen_again_and_again(empty):
    """tensor-fusion B3: a pinned profile was not compared with what is free, so the fullest GPU was tried for ever."""
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1))))
    grants = [bound(empty, asked(f"p{number}", HALF)) for number in range(4)]
    assert {grant.booking.devices[0].gpu for grant in grants} == {"GPU-node-a-0", "GPU-node-a-1"}
    assert all_of(empty, empty.request(asked("late", HALF))) == []


def test_one_pod_that_ends_takes_nobody_elses_name_from_the_gpu(bench):
    """tensor-fusion B4: the last pod of one workload erased all others of its namespace from what the GPU has."""
    kept, goes = bound(bench, asked("kept", SMALL)), bound(bench, asked("goes", SMALL))
    end(bench, goes)
    assert dict.fromkeys(bench.allocator.ctx.cluster.booked()) == {kept.booking.allocation: None}


def test_a_tenant_may_be_kept_from_being_preempted_by_others(bench):
    """tensor-fusion #551: its preemption could not be limited to the own tenant, nor turned off."""
    all_of(bench, bench.observe(subjects.quota("lab"), msg.QuotaSet(namespace="lab", guaranteed=msg.Amounts(gpus=1))))
    bound(bench, pod("theirs", WHOLE, namespace="lab", leeway=msg.Leeway(preemptible=True)))
    assert all_of(bench, bench.request(pod("other", WHOLE, namespace="den", priority=9))) == []
    own = all_of(bench, bench.request(pod("own", WHOLE, namespace="lab", priority=9)))
    assert [type(each) for each in own] == [msg.Grant, msg.EvictionOrdered]


def test_the_quota_counts_what_is_given_and_not_what_is_asked_for(bench):
    """HAMi §2.4: it checks the raw request, and charges the size of the profile that it became."""
    all_of(
        bench,
        bench.observe(subjects.quota("default"), msg.QuotaSet(namespace="default", total=msg.Amounts(memory_mib=8000))),
    )
    sized = claim(profile=None, memory_mib=6000)
    (waits,) = [write.message for write in bench.land_all(bench.request(asked("sized", sized)))]
    assert waits.reasons[0].reason is WaitReason.QUOTA_EXCEEDED


def test_what_is_freed_is_given_in_the_same_moment(bench):
    """HAMi #1368, InstaSlice: capacity lay idle for minutes, for only a timer looked who waits."""
    first = bound(bench, asked("first", WHOLE))
    assert all_of(bench, bench.request(asked("second", WHOLE))) == []
    withdraw(bench, "first")
    said = all_of(bench, bench.gone(first))
    assert [each.booking.name for each in said if isinstance(each, msg.Grant)] == ["second"]


def test_a_place_of_a_pod_that_never_started_blocks_nobody(bench):
    """HAMi #2923: what was reserved for a pod that was never bound held its GPU after the pod was gone."""
    grant = bench.granted("never", WHOLE)
    (revoke,) = withdraw(bench, "never")
    assert isinstance(revoke, msg.Revoke)
    all_of(bench, bench.gone(grant))
    assert isinstance(bench.granted("next", WHOLE), msg.Grant)


def test_a_pod_that_is_ending_has_its_place_also_after_a_restart(bench):
    """HAMi #2812: a restarted scheduler did not count pods that were terminating, and gave their devices away."""
    bound(bench, asked("ending", WHOLE))
    withdraw(bench, "ending")
    after = restarted(bench)
    assert all_of(after, after.request(asked("next", SMALL))) == []
    (entry,) = after.allocator.ctx.facts.ledger.values()
    assert isinstance(entry, msg.Revoke)
    said = all_of(after, after.gone(msg.Grant(revision=1, incarnation=entry.incarnation, booking=entry.booking)))
    assert [each.booking.name for each in said if isinstance(each, msg.Grant)] == ["next"]


def test_a_pod_with_a_container_that_needs_no_gpu_is_moved_back(pair):
    """mig-adapter 5: comparing a container without MIG with its original ended the adapter."""
    ask = parse_pod({"main.sluice.dev/profile": "1g.5gb"}, (ContainerRequest("sidecar"), ContainerRequest("main")))
    assert isinstance(ask, PodRequest), ask
    assert [each.container for each in ask.claims] == ["main"]
    full = bound(pair, asked("full", WHOLE))
    old = bound(pair, returning("web-1", *ask.claims))
    assert old.booking.instead_of == "1g.5gb"
    end(pair, full)
    (kept,) = moves(passes(pair, 700))
    assert (kept.booking.node, kept.after) == ("node-a", (old.booking.allocation,))


def test_a_pod_is_moved_back_when_all_that_it_asked_for_is_free(pair):
    """mig-adapter 8: of a pod with several profiles it looked at one only."""
    full = bound(pair, asked("full", WHOLE))
    pair_of = (claim(profile="1g.5gb"), claim(container="second", profile="2g.10gb"))
    old = bound(pair, returning("web-1", *pair_of))
    assert (old.booking.node, len(old.booking.devices)) == ("node-b", 2)
    end(pair, full)
    most = bound(pair, asked("most", claim(profile="4g.20gb")))
    also = bound(pair, asked("also", claim(profile="2g.10gb")))
    assert moves(passes(pair, 1400)) == []
    end(pair, also)
    (kept,) = moves(passes(pair, 700))
    assert [device.profile for device in kept.booking.devices] == ["1g.5gb", "2g.10gb"]
    assert most.booking.node == "node-a"


def test_a_new_instance_touches_no_other(bench):
    """mig-adapter 10: for one pod it had the whole node partitioned again, without a check for its users."""
    bound(bench, asked("runs", SMALL))
    (grant,) = all_of(bench, bench.request(asked("new", HALF)))
    assert isinstance(grant, msg.Grant)
    assert [type(each) for each in all_of(bench, bench.ready(grant))] == [msg.Bound]
    assert ready_of(grant).devices[0].profile == "3g.20gb"
