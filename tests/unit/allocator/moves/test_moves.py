"""Moving a pod: its new place is booked before it is evicted, its successor has it, and no pod is moved twice."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, begun_anew, claim, gpu_report, order, snapshot
from factories.scheduling.resize import MODES, mps

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Cordoned,
    EvictionBlocked,
    EvictionDone,
    EvictionOrdered,
    EvictionOver,
    Grant,
    HostNeeds,
    HostPort,
    Leeway,
    NodeExpression,
    Pending,
    PodGroup,
    PodTerm,
    RequestWithdrawn,
    Revoke,
    SliceFailed,
    Uncordoned,
)
from sluice.contracts.messages.requests import Substitute
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged
from sluice_allocator.core.explain.status import PodAsked, WouldBind, how_it_stands, simulate

SMALL, WHOLE = claim(profile="1g.5gb"), claim(profile="7g.40gb")
COOLDOWN_S, PATIENCE_S, KEPT_S = 600.0, 120.0, 60.0


@pytest.fixture
def bench() -> Bench:
    """node-a is an A100-40GB, node-b an A30: a 1g.6gb there may serve instead of a 1g.5gb."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(closing_ttl_s=3600)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    return bench


def asks(name: str, *claims, substitute: Substitute = "return", movable: bool = False) -> AllocationRequested:
    """A pod that lets itself be served by a larger profile, and wants its own back."""
    leeway = Leeway(substitute=substitute, movable=movable)
    return msgspec.structs.replace(asked(name, *(claims or (SMALL,))), leeway=leeway)


def all_of(bench: Bench, said: list) -> list[Write]:
    """Everything lands, until nothing is left to be done."""
    landed = bench.land_all(said)
    while bench.allocator.unfinished:
        landed += bench.land_all(bench.handle(Continue()))
    return landed


def bound(bench: Bench, request: AllocationRequested) -> Grant:
    (write,) = [each for each in all_of(bench, bench.request(request)) if isinstance(each.message, Grant)]
    all_of(bench, bench.ready(write.message))
    return write.message


def end(bench: Bench, grant: Grant, cause: str = "pod gone") -> list[Write]:
    """A pod is not there any more, and its agent says that its slice is gone."""
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause=cause)
    landed = all_of(bench, bench.observe(subjects.request(grant.booking.request), withdrawn))
    return landed + all_of(bench, bench.gone(grant))


def passes(bench: Bench, seconds: float, step: float = 30.0) -> list[Write]:
    landed = []
    until = bench.now + seconds
    while bench.now < until:
        bench.now = min(until, bench.now + step)
        landed += all_of(bench, bench.handle(Ticked()))
    return landed


def says(bench: Bench, name: str, outcome: EvictionDone | EvictionBlocked) -> list[Write]:
    return all_of(bench, bench.observe(subjects.evicted(RequestId(name)), outcome))


def messages(writes: list[Write]) -> list[object]:
    return [each.message for each in writes if not isinstance(each.message, Pending)]


def served_by_a_larger_one(bench: Bench, name: str = "web-1") -> Grant:
    """The A100 was full when this pod came; now it is empty."""
    full = bound(bench, asked("full", WHOLE))
    grant = bound(bench, asks(name))
    assert (grant.booking.node, grant.booking.instead_of) == ("node-b", "1g.5gb")
    end(bench, full)
    return grant


def being_moved(bench: Bench, name: str = "web-1") -> tuple[Grant, Grant]:
    old = served_by_a_larger_one(bench, name)
    (kept, _) = messages(passes(bench, COOLDOWN_S + 60))
    assert isinstance(kept, Grant)
    return old, kept


def test_one_who_waits_is_offered_a_larger_one_that_is_freed(bench):
    """Otherwise a pod that came while everything was full would wait beside a free slice that it may use."""
    first = bound(bench, asked("first", WHOLE))
    second = bound(bench, asked("second", claim(profile="4g.24gb")))
    (waits,) = all_of(bench, bench.request(asks("p1")))
    assert isinstance(waits.message, Pending)
    (granted,) = [each for each in messages(end(bench, second)) if isinstance(each, Grant)]
    assert (granted.booking.name, granted.booking.instead_of) == ("p1", "1g.5gb")
    assert first.booking.node == "node-a"


def test_the_new_place_is_booked_before_the_pod_is_evicted(bench):
    """mig-adapter §3.3: a pod that is evicted first may find that somebody else has the place by then."""
    old = served_by_a_larger_one(bench)
    bench.now += COOLDOWN_S
    all_of(bench, bench.handle(Ticked()))
    bench.now += 10

    booked = [each for each in bench.handle(Ticked()) if isinstance(each, Write)]
    assert [type(each.message) for each in booked] == [Grant]
    kept = booked[0].message
    assert (kept.booking.node, kept.booking.request, kept.booking.instead_of) == ("node-a", "web-1", "")
    assert (kept.after, kept.evict) == ((old.booking.allocation,), True)

    followed = bench.land(booked[0])
    assert [each.message for each in followed if isinstance(each, Write)] == [
        order("web-1", "it is moved: a place on node-a is kept for its replacement (1g.5gb)")
    ]


def test_the_successor_has_the_kept_place_and_nobody_else(bench):
    """A pod that was evicted for a place and does not get it was restarted for nothing."""
    old, kept = being_moved(bench)
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    others = messages(all_of(bench, bench.request(asked("stranger", WHOLE))))
    assert others == []

    granted, revoked, over = messages(all_of(bench, bench.request(asks("web-2"))))
    assert over == EvictionOver(request=RequestId("web-1"))
    assert isinstance(granted, Grant)
    assert (granted.booking.request, granted.booking.node, granted.booking.instead_of) == ("web-2", "node-a", "")
    assert granted.after == (kept.booking.allocation,)
    assert isinstance(revoked, Revoke)
    assert (revoked.booking, revoked.cause) == (kept.booking, "its place was handed over to default/web-2")

    all_of(bench, bench.gone(kept))
    (said,) = [each for each in messages(all_of(bench, bench.ready(granted))) if isinstance(each, Bound)]
    assert (said.request, said.warnings) == ("web-2", ())
    end(bench, old)
    later = messages(passes(bench, 2 * COOLDOWN_S))
    assert [each for each in later if isinstance(each, EvictionOrdered) or not isinstance(each, Grant)] == []


def test_a_kept_place_does_not_keep_its_successor_out(bench):
    """A replica that wants a host for itself was evicted for a place, and would be in its own way there."""
    llm = (NodeExpression(key="app", operator="In", values=("llm",)),)
    apart = PodTerm(topology_key="kubernetes.io/hostname", selector=llm, namespaces=("default",))
    host = HostNeeds(apart=(apart,), ports=(HostPort(port=8000),))
    full = bound(bench, asked("full", WHOLE))
    bound(bench, msgspec.structs.replace(asks("web-1"), host=host, labels={"app": "llm"}))
    end(bench, full)
    (kept, _) = messages(passes(bench, COOLDOWN_S + 60))
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))

    successor = msgspec.structs.replace(asks("web-2"), host=host, labels={"app": "llm"})
    granted, *_ = messages(all_of(bench, bench.request(successor)))
    assert isinstance(granted, Grant)
    assert (granted.booking.node, granted.after) == (kept.booking.node, (kept.booking.allocation,))


def test_a_successor_of_the_same_name_does_not_wait_for_itself(bench):
    """In a folder the pod keeps its name: `waits for default/web-1 to be evicted`, said of web-1, explains nothing."""
    being_moved(bench)
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    again = msgspec.structs.replace(asks("web-2"), name="web-1")
    said = all_of(bench, bench.observe(subjects.request(RequestId("web-2")), again))
    assert [each.message.message for each in said if isinstance(each.message, Pending)] == [
        "its place on node-a was kept for it when it was evicted, and is being handed over"
    ]


def test_pods_that_come_and_go_restart_nobody(bench):
    """mig-adapter 1: there every deletion begins another round of restarts. Here it takes a free place, and time."""
    full = bound(bench, asked("full", WHOLE))
    bound(bench, asks("web-1"))
    for number in range(20):
        end(bench, bound(bench, asked(f"passing-{number}", claim(profile="1g.6gb"))))
        assert messages(passes(bench, 30)) == []
    end(bench, full)
    assert [type(each) for each in messages(passes(bench, 120))] == [Grant, EvictionOrdered]


def test_a_pod_stays_for_the_cooldown_before_it_is_moved_again(bench):
    """One that is moved whenever something is free does no work. Its successor's time begins again."""
    _, kept = being_moved(bench)
    bench.handle(LeaseChanged(held=True))
    all_of(bench, bench.observe(subjects.cordon("node-a"), Cordoned(node="node-a")))
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    all_of(bench, bench.gone(kept))
    again = bound(bench, asks("web-2"))
    assert again.booking.instead_of == "1g.5gb"
    all_of(bench, bench.observe(subjects.cordon("node-a"), Cordoned(node="node-a", gpus=("another",))))
    assert messages(passes(bench, COOLDOWN_S - 60)) == []
    assert [type(each) for each in messages(passes(bench, 120))] == [Grant, EvictionOrdered]


def test_so_many_a_minute_are_moved_and_no_more():
    """mig-adapter 3: it knows no rate limit. A rack that comes back must not restart half the cluster in one second."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(closing_ttl_s=3600, moves_per_minute=2, moves_at_once=100)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for number in range(3):
        bench.add_node(snapshot(f"node-b{number}", (gpu_report(f"node-b{number}", 0, model="a30-24gb"),)))
    for number in range(12):
        bound(bench, asks(f"web{number}"))
    passes(bench, COOLDOWN_S)
    for number in range(3):
        bench.add_node(snapshot(f"node-a{number}", (gpu_report(f"node-a{number}", 0),)))
    moved = [sum(isinstance(each, EvictionOrdered) for each in messages(passes(bench, 60, step=5))) for _ in range(4)]
    assert moved[0] <= 4
    assert moved[1:] == [2, 2, 2]


def test_a_pod_that_may_not_be_evicted_is_left_alone(bench):
    """A disruption budget that forbids it is shown; the place is not held for ever, and the order is taken back."""
    _, kept = being_moved(bench)
    says(bench, "web-1", EvictionBlocked(request=RequestId("web-1"), why="disruption budget"))
    revoked, over = messages(passes(bench, PATIENCE_S + 60))
    assert isinstance(revoked, Revoke)
    assert revoked.booking == kept.booking
    assert revoked.cause == "its pod could not be evicted: disruption budget (after 120 s)"
    assert over == EvictionOver(request=RequestId("web-1"))
    all_of(bench, bench.gone(kept))
    assert [each for each in messages(passes(bench, COOLDOWN_S - 180)) if not isinstance(each, Closed)] == []


def test_a_place_that_nobody_comes_for_is_given_up(bench):
    """A controller that was scaled down makes no successor: what is kept for one is others' again."""
    old, kept = being_moved(bench)
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    end(bench, old, "containers ended")
    assert messages(passes(bench, KEPT_S - 30)) == []
    (revoked,) = messages(passes(bench, 60))
    assert isinstance(revoked, Revoke)
    assert revoked.cause == "no replacement of its pod came (after 60 s)"
    assert revoked.booking == kept.booking


def test_a_pod_that_ends_by_itself_needs_no_place(bench):
    """It has done its work: nothing is kept for it."""
    old, kept = being_moved(bench)
    landed = messages(end(bench, old, "containers ended"))
    assert [(each.booking.allocation, each.cause) for each in landed if isinstance(each, Revoke)] == [
        (old.booking.allocation, "containers ended"),
        (kept.booking.allocation, "its pod ended by itself"),
    ]


def test_a_place_that_cannot_be_used_is_given_up_and_nobody_evicted(bench):
    """The slice could not be made, or its node was cordoned: then the pod stays where it is."""
    _, kept = being_moved(bench)
    failed = SliceFailed(
        allocation=kept.booking.allocation, request=RequestId("web-1"), revision=1, error="x", message="no"
    )
    address = subjects.slice_(kept.booking.node, kept.booking.allocation)
    revoked, over = messages(all_of(bench, bench.observe(address, failed)))
    assert isinstance(revoked, Revoke)
    assert over == EvictionOver(request=RequestId("web-1"))


def test_a_pod_of_another_controller_does_not_take_the_kept_place(bench):
    """mig-adapter 4: its rule is taken by whichever pod comes first. Only the like of the evicted one has a claim."""
    being_moved(bench)
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    others = messages(all_of(bench, bench.request(asks("db-1"))))
    assert [each.after for each in others if isinstance(each, Grant)] == [()]
    larger = messages(all_of(bench, bench.request(asks("web-3", WHOLE))))
    assert larger == []


def restarted(bench: Bench, run: str = "r2", **rules) -> Bench:
    """Another process that knows what is on the bus, and nothing else."""
    other = begun_anew(bench, SchedulerConfig(closing_ttl_s=3600, **rules), run)
    all_of(other, other.handle(LeaseChanged(held=True)))
    return other


@pytest.mark.parametrize("step", ["booked", "evicted", "ended", "handed over"])
def test_a_restart_at_every_step_ends_the_same(bench, step):
    """The allocator dies after any word of a move: the successor still has the place, and nothing is left over."""
    old, kept = being_moved(bench)
    if step == "booked":
        bench = restarted(bench)
    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    if step == "evicted":
        bench = restarted(bench)
    end(bench, old, "containers ended")
    if step == "ended":
        bench = restarted(bench)
    first = bench.request(asks("web-2"))
    if step == "handed over":
        (grant,) = [each for each in first if isinstance(each, Write)]
        bench.land(grant)
        bench = restarted(bench)
        granted = grant.message
    else:
        granted = next(each for each in messages(all_of(bench, first)) if isinstance(each, Grant))
    assert granted.after == (kept.booking.allocation,)
    assert isinstance(bench.allocator.ctx.facts.ledger[kept.booking.allocation], Revoke)
    all_of(bench, bench.gone(kept))
    all_of(bench, bench.ready(granted))
    ledger = bench.allocator.ctx.facts.ledger
    assert [each for each, entry in ledger.items() if not isinstance(entry, Closed)] == [granted.booking.allocation]
    assert isinstance(bench.allocator.ctx.facts.bindings[RequestId("web-2")], Bound)


def test_two_allocators_that_move_one_pod_keep_one_place(bench):
    """Two places for one pod would be wasted capacity: the first that was written is kept."""
    old, kept = being_moved(bench)
    bench.add_node(snapshot("node-c", (gpu_report("node-c", 0),)))
    own = kept.booking
    (gpu,) = bench.allocator.ctx.cluster.nodes["node-c"].gpus
    device = msgspec.structs.replace(own.devices[0], gpu=gpu.report.uuid)
    other = msgspec.structs.replace(own, allocation=AllocationId("web-1_r9_1"), node="node-c", devices=(device,))
    grant = Grant(revision=1, incarnation=kept.incarnation, booking=other, after=kept.after, evict=True)
    (revoked,) = messages(all_of(bench, bench.observe(subjects.ledger("node-c", other.allocation), grant)))
    assert (revoked.booking, revoked.cause) == (other, "an earlier place is reserved for it")
    assert old.booking.allocation in bench.allocator.ctx.facts.ledger


def test_a_kept_place_is_not_bound_when_its_pods_own_slice_is_gone_and_no_binding_tells(bench):
    """It is taken back in that very step: bound, a pod would be told of a slice that is about to be destroyed."""
    old, kept = being_moved(bench)
    all_of(bench, bench.ready(kept))
    del bench.allocator.ctx.facts.bindings[RequestId("web-1")]
    said = messages(all_of(bench, bench.gone(old)))
    assert [each.cause for each in said if isinstance(each, Revoke)] == ["its slice is gone, but its pod is not"]
    assert kept.booking.allocation not in [each.allocation for each in said if isinstance(each, Bound)]
    again = messages(all_of(bench, bench.gone(kept)))
    assert not [each for each in again if isinstance(each, Bound)]


@pytest.fixture
def tidy() -> Bench:
    """Two A100 with little on each: pod `small` may be moved, `fixed` may not, and a 7g would need one of them."""
    return tidied(SchedulerConfig(closing_ttl_s=3600, promise_after_s=1e6, defragment=True, defragment_arrivals=2))


def tidied(rules: SchedulerConfig) -> Bench:
    bench = Bench(Allocator(RunId("r1"), rules))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for node in ("node-a", "node-b"):
        bench.add_node(snapshot(node, (gpu_report(node, 0),)))
    bound(bench, asked("fixed", claim(profile="3g.20gb")))
    blocker = bound(bench, asked("blocker", claim(profile="4g.20gb")))
    bound(bench, asks("small-1", substitute="no", movable=True))
    end(bench, blocker)
    nodes = {each.booking.name: each.booking.node for each in grants_of(bench)}
    assert nodes["small-1"] != nodes["fixed"]
    return bench


def grants_of(bench: Bench) -> list[Grant]:
    return [entry for entry in bench.allocator.ctx.facts.ledger.values() if isinstance(entry, Grant)]


def test_room_is_made_for_a_large_request(tidy):
    """The whole story: promised, the small one's next place booked, evicted, both placed."""
    all_of(tidy, tidy.request(asked("large", WHOLE)))
    passes(tidy, COOLDOWN_S - 60)
    promise, kept, ordered = messages(passes(tidy, 180))
    assert (promise.booking.name, promise.evict) == ("large", False)
    assert (kept.booking.name, kept.after, kept.evict) == ("small-1", promise.after, True)
    assert kept.booking.node != promise.booking.node
    assert ordered.request == "small-1"
    (old,) = [each for each in grants_of(tidy) if each.booking.allocation == kept.after[0]]

    says(tidy, "small-1", EvictionDone(request=RequestId("small-1")))
    granted, *_ = messages(all_of(tidy, tidy.request(asks("small-2", substitute="no", movable=True))))
    assert granted.booking.node == kept.booking.node
    all_of(tidy, tidy.gone(kept))
    end(tidy, old, "containers ended")
    ready = messages(all_of(tidy, tidy.ready(promise)) + all_of(tidy, tidy.ready(granted)))
    assert [each.request for each in ready if isinstance(each, Bound)] == ["large", "small-2"]


def test_a_moved_pod_with_a_share_has_the_place_that_was_kept_for_it_although_there_is_room_beside():
    """It would be granted, given up because of that room, and granted again when it is free of both: its pod waits."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=1e6, defragment=True, defragment_arrivals=1)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, mig=False),), modes=MODES))
    bound(bench, asked("other", mps(15_000)))
    cordon = subjects.cordon(NodeName("node-b"))
    bench.observe(cordon, Cordoned(node=NodeName("node-b")))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=MODES))
    old = bound(bench, asks("web-1", mps(10_000), substitute="no", movable=True))
    bench.observe(cordon, Uncordoned(node=NodeName("node-b")))
    passes(bench, COOLDOWN_S)
    all_of(bench, bench.request(asked("large", claim(profile=None))))
    (kept, ordered) = messages(passes(bench, 60))[-2:]
    assert (old.booking.node, kept.booking.node) == ("node-a", "node-b")
    assert ordered.cause == "it is moved: a place on node-b is kept for its replacement (a share)"

    says(bench, "web-1", EvictionDone(request=RequestId("web-1")))
    end(bench, old)
    granted, revoked = messages(all_of(bench, bench.request(asks("web-2", mps(10_000), substitute="no", movable=True))))
    assert (type(granted), granted.after) == (Grant, (kept.booking.allocation,))
    assert (type(revoked), revoked.booking) == (Revoke, kept.booking)
    all_of(bench, bench.gone(kept))
    said = messages(all_of(bench, bench.ready(granted)))
    assert [each.allocation for each in said if isinstance(each, Bound)] == [granted.booking.allocation]


def test_room_is_only_proposed_where_nobody_wants_it_done():
    """Restarts of other people's pods are the operator's decision."""
    bench = tidied(SchedulerConfig(closing_ttl_s=3600, promise_after_s=1e6))
    all_of(bench, bench.request(asked("large", WHOLE)))
    assert messages(passes(bench, 3 * COOLDOWN_S)) == []
    standing = how_it_stands(bench.allocator.ctx, RequestId("large"))
    assert standing is not None
    assert standing.plan is not None
    assert [(each.name, each.memory_mib) for each in standing.plan.moved] == [("small-1", 4864)]
    assert (standing.plan.gains_mib, standing.plan.node) == (40320, standing.plan.moved[0].from_node)


def test_nobody_is_moved_for_a_request_that_never_preempts(tidy):
    """A move evicts somebody, and such a request has said that it only waits."""
    all_of(tidy, tidy.request(msgspec.structs.replace(asked("large", WHOLE), preempts=False)))
    assert messages(passes(tidy, 3 * COOLDOWN_S)) == []
    standing = how_it_stands(tidy.allocator.ctx, RequestId("large"))
    assert standing is not None
    assert standing.plan is None


def test_nobody_is_moved_for_a_promise_to_a_request_that_never_preempts():
    """What waits longest is promised a place, which its tenants leave when they are done."""
    bench = tidied(SchedulerConfig(closing_ttl_s=3600, promise_after_s=60, defragment=True, defragment_arrivals=2))
    all_of(bench, bench.request(msgspec.structs.replace(asked("large", WHOLE), preempts=False)))
    said = messages(passes(bench, 3 * COOLDOWN_S))
    assert next(each for each in said if isinstance(each, Grant)).booking.name == "large"
    assert [each for each in said if isinstance(each, EvictionOrdered)] == []


def test_each_request_pays_once_however_often_it_is_looked_at():
    """A pod that waits for its group is in no queue: each word about it would pay for another restart of somebody."""
    bench = tidied(SchedulerConfig(closing_ttl_s=3600, promise_after_s=1e6, defragment=True, defragment_arrivals=6))
    all_of(bench, bench.request(asked("large", WHOLE)))
    member = msgspec.structs.replace(asked("member"), group=PodGroup(name="train", size=2))
    (told,) = all_of(bench, bench.request(member))
    for _ in range(12):
        all_of(bench, bench.observe(subjects.waiting(RequestId("member")), told.message))
    assert not any(isinstance(each, EvictionOrdered) for each in messages(passes(bench, COOLDOWN_S + 600)))
    all_of(bench, bench.request(asked("more", WHOLE)))
    assert any(isinstance(each, EvictionOrdered) for each in messages(passes(bench, 120)))


def test_nobody_is_moved_any_more_when_the_large_one_is_gone(tidy):
    """It was withdrawn while its room was being made: who was not evicted yet stays."""
    all_of(tidy, tidy.request(asked("large", WHOLE)))
    passes(tidy, COOLDOWN_S + 120)
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    landed = messages(all_of(tidy, tidy.observe(subjects.request(RequestId("large")), withdrawn)))
    assert [each.booking.name for each in landed if isinstance(each, Revoke)] == ["large", "small-1"]
    assert EvictionOver(request=RequestId("small-1")) in landed


def test_a_restart_between_promise_and_move_goes_on(tidy):
    """The allocator dies when the large one is promised its place and no pod is moved yet: the next one moves it."""
    all_of(tidy, tidy.request(asked("large", WHOLE)))
    while not any(each.after for each in grants_of(tidy)):
        tidy.now += 30
        tidy.land_all([each for each in tidy.handle(Ticked()) if not _is_move(each)])
    other = restarted(tidy, promise_after_s=1e6, defragment=True, defragment_arrivals=1)
    for number in range(2):
        all_of(other, other.request(asked(f"more-{number}", WHOLE)))
    moved = messages(passes(other, COOLDOWN_S + 120))
    assert [each.request for each in moved if isinstance(each, EvictionOrdered)] == ["small-1"]


def _is_move(each: object) -> bool:
    return isinstance(each, Write) and isinstance(each.message, Grant) and each.message.evict


def test_a_bound_pod_is_explained_with_what_it_has_instead_and_what_becomes_of_it(bench):
    """Its owner sees more memory than requested, and later an eviction: both must have a reason."""
    served_by_a_larger_one(bench)
    ctx = bench.allocator.ctx
    standing = how_it_stands(ctx, RequestId("web-1"))
    assert standing is not None
    larger = (
        "is bound on node-b; it has a larger profile because no 1g.5gb was free; it is moved back (evicted and started "
        f"again there) once one is free and it has stayed for {COOLDOWN_S:.0f} s"
    )
    assert standing.message == larger
    passes(bench, COOLDOWN_S + 60)
    says(bench, "web-1", EvictionBlocked(request=RequestId("web-1"), why="disruption budget"))
    standing = how_it_stands(ctx, RequestId("web-1"))
    assert standing is not None
    booked = "a place on node-a is reserved for its replacement, and it is evicted"
    assert standing.message == f"{larger}; {booked}, but the eviction is refused: disruption budget"


def test_the_simulated_answer_is_the_real_one(bench):
    """A simulation has to show that the pod would get a larger profile, and on which node."""
    all_of(bench, bench.request(asked("full", WHOLE)))
    keys = {"sluice.dev/profile": "1g.5gb", "sluice.dev/substitute": "true"}
    found = simulate(bench.allocator.ctx, PodAsked("default", keys, (ContainerRequest("main"),)))
    assert isinstance(found, WouldBind)
    assert (found.node, found.devices[0].grant.profile, found.instead_of) == ("node-b", "1g.6gb", "1g.5gb")
    (write,) = all_of(bench, bench.request(asks("p1", substitute="stay")))
    assert write.message.booking.devices == (found.devices[0].grant,)


def test_who_was_promised_a_place_loses_no_kept_place(bench: Bench):
    """It may have one of the two: the other would be taken back, and the pod that was evicted for it have none."""
    full = bound(bench, asked("full", WHOLE))
    old = bound(bench, asks("web-1"))
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    all_of(bench, bench.observe(subjects.request(full.booking.request), withdrawn))
    all_of(bench, bench.gone(full))
    while bench.now < 660:
        bench.now += 30
        all_of(bench, bench.handle(Ticked()))
    world = bench.allocator.ctx.facts
    kept = [world.ledger[a] for a in world.allocations_of[RequestId("web-1")]][1]
    assert isinstance(kept, Grant)
    assert kept.after == (old.booking.allocation,)
    all_of(bench, bench.observe(subjects.evicted(RequestId("web-1")), EvictionDone(request=RequestId("web-1"))))
    # another allocator has promised web-2 the place of web-1, in its turn
    booking = msgspec.structs.replace(
        old.booking, allocation=AllocationId("web-2_r9_1"), request=RequestId("web-2"), name="web-2"
    )
    promise = msgspec.structs.replace(old, booking=booking, after=(old.booking.allocation,))
    all_of(bench, bench.observe(subjects.ledger(booking.node, booking.allocation), promise))
    writes = all_of(bench, bench.request(asks("web-2")))
    revoked = [w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)]
    heirs = [w.message.booking.allocation for w in writes if isinstance(w.message, Grant) and w.message.evict]
    assert (revoked, heirs) == ([], [])
