"""Known faults of other systems in sharing a fleet out: one test each that shows they are not ours."""

import msgspec
import pytest
from factories.calls import calls_of
from factories.scheduling.allocator import (
    FOLDER,
    Bench,
    asked,
    claim,
    gpu_report,
    snapshot,
    working_allocator,
)

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Grant,
    HostFacts,
    HostNeeds,
    HostRoom,
    Leeway,
    NodeInventory,
    Pending,
    RequestWithdrawn,
)
from sluice_allocator.core.events import Continue

WHOLE, HALF, SMALL = claim(profile="7g.40gb"), claim(profile="3g.20gb"), claim(profile="1g.5gb")


def all_of(bench: Bench, said: list) -> list:
    """What is written when everything lands, without waiting words."""
    landed = bench.land_all(said)
    while bench.allocator.unfinished:
        landed += bench.land_all(bench.handle(Continue()))
    return [write.message for write in landed if not isinstance(write.message, Pending)]


def pod(name: str, *claims, **more) -> AllocationRequested:
    return msgspec.structs.replace(asked(name, *claims), **more)


def bound(bench: Bench, message: AllocationRequested) -> Grant:
    (grant,) = [each for each in all_of(bench, bench.request(message)) if isinstance(each, Grant)]
    all_of(bench, bench.ready(grant))
    return grant


def withdraw(bench: Bench, name: str) -> list:
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    return all_of(bench, bench.observe(subjects.request(RequestId(name)), gone))


def end(bench: Bench, grant: Grant) -> list:
    return withdraw(bench, grant.booking.name) + all_of(bench, bench.gone(grant))


def passes(bench: Bench, seconds: float, step: float = 10.0) -> list:
    landed = []
    for _ in range(round(seconds / step)):
        bench.now += step
        landed += all_of(bench, bench.handle(Ticked()))
    return landed


def test_the_memory_of_the_node_is_given_back_with_the_pod(bench):
    """tensor-fusion #791: an overwritten note of a pod left its memory counted for ever."""
    host = HostFacts(cpu_cores=64.0, memory_mib=8192, pods_free=110)
    all_of(bench, bench.observe(subjects.host("node-a"), host))
    needs = HostNeeds(room=HostRoom(memory_mib=6000))
    for number in range(3):
        grant = bound(bench, pod(f"p{number}", SMALL, host=needs))
        edited = pod(f"p{number}", SMALL, host=HostNeeds(room=HostRoom(memory_mib=7000)), revision=2)
        assert all_of(bench, bench.request(edited)) == []
        end(bench, grant)
    assert isinstance(bound(bench, pod("last", SMALL, host=HostNeeds(room=HostRoom(memory_mib=8192)))), Grant)


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
        all_of(empty, empty.observe(subjects.inventory(shown.node), NodeInventory(snapshot=shown, stale=False)))
    end(empty, grant)
    assert empty.allocator.ctx.cluster.namespace_usage.used("default").memory_mib == 0
    assert isinstance(bound(empty, asked("whole", claim(profile=None))), Grant)


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
        for number in range(nodes):
            bench.add_node(snapshot(f"node-{number}", (gpu_report(f"node-{number}", 0),)))
        bench.land_all(bench.request(asked("warm", SMALL)))
        return calls_of(lambda: bench.request(asked("one", SMALL)))

    assert calls(200) < 1.2 * calls(2)


def returning(name: str, *claims) -> AllocationRequested:
    return pod(name, *claims, leeway=Leeway(substitute="return"))


def moves(said: list) -> list[Grant]:
    return [each for each in said if isinstance(each, Grant) and each.evict]


def test_who_may_be_moved_back_is_looked_at_a_few_at_a_time():
    """mig-adapter 7: with every word about any pod it went through all nodes and all pods."""

    def calls(pods: int) -> int:
        bench = working_allocator()
        bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
        bench.add_node(snapshot("node-b", tuple(gpu_report("node-b", n, model="a30-24gb") for n in range(pods))))
        bound(bench, asked("full", WHOLE))
        for number in range(pods):
            bound(bench, returning(f"web{number}-1", claim(profile="4g.20gb")))
        passes(bench, 700, step=50)
        bench.now += 1
        return calls_of(lambda: bench.handle(Ticked()))

    assert calls(40) < 1.3 * calls(4)
