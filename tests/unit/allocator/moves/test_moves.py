"""Moving a pod: its new place is booked before it is evicted, its successor has it, and no pod is moved twice."""

import pytest
from factories.scheduling.allocator import (
    Bench,
    asked,
    claim,
    gpu_report,
    kinds,
    only,
    restarted,
    snapshot,
    working_allocator,
)
from factories.scheduling.preemption import blocked, evicted, high
from factories.scheduling.resize import MODES, mps
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages.requests import Substitute
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.explain.status import PodAsked, how_it_stands, simulate

SMALL, WHOLE = claim(profile="1g.5gb"), claim(profile="7g.40gb")
COOLDOWN_S, PATIENCE_S, KEPT_S = 600.0, 120.0, 60.0


@pytest.fixture
def bench() -> Bench:
    """node-a is an A100-40GB, node-b an A30: a 1g.6gb there may serve instead of a 1g.5gb."""
    bench = working_allocator(SchedulerConfig(closing_ttl_s=3600))
    bench.add_nodes("node-a")
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    return bench


def asks(name: str, *claims, substitute: Substitute = "return", movable: bool = False) -> msg.AllocationRequested:
    """A pod that lets itself be served by a larger profile, and wants its own back."""
    leeway = msg.Leeway(substitute=substitute, movable=movable)
    return replace(asked(name, *(claims or (SMALL,))), leeway=leeway)


def end(bench: Bench, grant: msg.Grant, cause: str = "pod gone") -> list:
    """A pod is not there any more, and its agent says that its slice is gone."""
    return bench.words(bench.ends(grant.booking.request, cause=cause)) + bench.words(bench.gone(grant))


def passes(bench: Bench, seconds: float) -> list:
    """Time passes, in steps of half a minute; what is published, without reasons to wait."""
    said, until = [], bench.now + seconds
    while bench.now < until:
        bench.now = min(until, bench.now + 30.0)
        said += bench.words(bench.handle(Ticked()), but=msg.Pending)
    return said


def served_by_a_larger_one(bench: Bench) -> msg.Grant:
    """The A100 was full when this pod came; now it is empty."""
    full = bench.run(asked("full", WHOLE))
    grant = bench.run(asks("web-1"))
    assert (grant.booking.node, grant.booking.instead_of) == ("node-b", "1g.5gb")
    end(bench, full)
    return grant


def being_moved(bench: Bench) -> tuple[msg.Grant, msg.Grant]:
    old = served_by_a_larger_one(bench)
    (kept, _) = passes(bench, COOLDOWN_S + 60)
    assert isinstance(kept, msg.Grant)
    return old, kept


def test_one_who_waits_is_offered_a_larger_one_that_is_freed(bench):
    """Otherwise a pod that came while everything was full would wait beside a free slice that it may use."""
    first = bench.run(asked("first", WHOLE))
    second = bench.run(asked("second", claim(profile="4g.24gb")))
    assert kinds(bench.asks(asks("p1"))) == [msg.Pending]
    (granted,) = only(msg.Grant, end(bench, second))
    assert (granted.booking.name, granted.booking.instead_of) == ("p1", "1g.5gb")
    assert first.booking.node == "node-a"


def test_a_kept_place_does_not_keep_its_successor_out(bench):
    """A replica that wants a host for itself was evicted for a place, and would be in its own way there."""
    llm = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)
    apart = msg.PodTerm(topology_key="kubernetes.io/hostname", selector=llm, namespaces=("default",))
    host = msg.HostNeeds(apart=(apart,), ports=(msg.HostPort(port=8000),))
    full = bench.run(asked("full", WHOLE))
    bench.run(replace(asks("web-1"), host=host, labels={"app": "llm"}))
    end(bench, full)
    (kept, _) = passes(bench, COOLDOWN_S + 60)
    evicted(bench, "web-1")

    granted = bench.asks(replace(asks("web-2"), host=host, labels={"app": "llm"}))[0]
    assert (granted.booking.node, granted.after) == (kept.booking.node, (kept.booking.allocation,))


def test_a_successor_of_the_same_name_does_not_wait_for_itself(bench):
    """In a folder the pod keeps its name: `waits for default/web-1 to be evicted`, said of web-1, explains nothing."""
    being_moved(bench)
    evicted(bench, "web-1")
    said = bench.words(bench.observe(subjects.request(RequestId("web-2")), asks("web-1")))
    why = "its place on node-a was kept for it when it was evicted, and is being handed over"
    assert [each.message for each in only(msg.Pending, said)] == [why]


def test_pods_that_come_and_go_restart_no_other(bench):
    """mig-adapter 1: there every deletion begins another round of restarts. Here it takes a free place, and time."""
    full = bench.run(asked("full", WHOLE))
    bench.run(asks("web-1"))
    for number in range(20):
        end(bench, bench.run(asked(f"passing-{number}", claim(profile="1g.6gb"))))
        assert passes(bench, 30) == []
    end(bench, full)
    assert kinds(passes(bench, 120)) == [msg.Grant, msg.EvictionOrdered]


def test_a_pod_that_may_not_be_evicted_is_left_alone(bench):
    """A disruption budget that forbids it is shown; the place is not held for ever, and the order is taken back."""
    _, kept = being_moved(bench)
    blocked(bench, "web-1", "disruption budget")
    revoked, over = passes(bench, PATIENCE_S + 60)
    assert (type(revoked), revoked.booking) == (msg.Revoke, kept.booking)
    assert revoked.cause == "its pod could not be evicted: disruption budget (after 120 s)"
    assert over == msg.EvictionOver(request=RequestId("web-1"))
    bench.settle(bench.gone(kept))
    assert set(kinds(passes(bench, COOLDOWN_S - 180))) <= {msg.Closed}


def test_a_pod_that_ends_by_itself_needs_no_place(bench):
    old, kept = being_moved(bench)
    revokes = only(msg.Revoke, end(bench, old, "containers ended"))
    assert [(each.booking.allocation, each.cause) for each in revokes] == [
        (old.booking.allocation, "containers ended"),
        (kept.booking.allocation, "its pod ended by itself"),
    ]


def test_a_pod_of_another_controller_does_not_take_the_kept_place(bench):
    """mig-adapter 4: its rule is taken by whichever pod comes first. Only the like of the evicted one has a claim."""
    being_moved(bench)
    evicted(bench, "web-1")
    assert [each.after for each in only(msg.Grant, bench.asks(asks("db-1")))] == [()]
    assert set(kinds(bench.asks(asks("web-3", WHOLE)))) <= {msg.Pending}


def test_two_allocators_that_move_one_pod_keep_one_place(bench):
    """Two places for one pod would be wasted capacity: the first that was written is kept."""
    old, kept = being_moved(bench)
    bench.add_nodes("node-c")
    own = kept.booking
    (gpu,) = bench.allocator.ctx.cluster.nodes["node-c"].gpus
    device = replace(own.devices[0], gpu=gpu.report.uuid)
    other = replace(own, allocation=AllocationId("web-1_r9_1"), node="node-c", devices=(device,))
    (revoked,) = bench.words(bench.reads(replace(kept, booking=other)), but=msg.Pending)
    assert (revoked.booking, revoked.cause) == (other, "an earlier place is reserved for it")
    assert old.booking.allocation in bench.allocator.ctx.facts.ledger


def test_a_kept_place_is_not_bound_when_its_pods_own_slice_is_gone_and_no_binding_tells(bench):
    """It is taken back in that very step: bound, a pod would be given a slice that is about to be destroyed."""
    old, kept = being_moved(bench)
    bench.settle(bench.ready(kept))
    del bench.allocator.ctx.facts.bindings[RequestId("web-1")]
    said = bench.words(bench.gone(old))
    assert [each.cause for each in only(msg.Revoke, said)] == ["its slice is gone, but its pod is not"]
    assert kept.booking.allocation not in [each.allocation for each in only(msg.Bound, said)]
    assert not only(msg.Bound, bench.words(bench.gone(kept)))


@pytest.fixture
def tidy() -> Bench:
    return tidied()


def tidied(**rules: float) -> Bench:
    """Two A100 with little on each: pod `small` may be moved, `fixed` may not, and a 7g would need one of them."""
    by_default = {"promise_after_s": 1e6, "defragment": True, "defragment_arrivals": 2}
    bench = working_allocator(SchedulerConfig(closing_ttl_s=3600, **(by_default | rules)))
    bench.add_nodes("node-a", "node-b")
    fixed = bench.run(asked("fixed", claim(profile="3g.20gb")))
    blocker = bench.run(asked("blocker", claim(profile="4g.20gb")))
    small = bench.run(asks("small-1", substitute="no", movable=True))
    end(bench, blocker)
    assert small.booking.node != fixed.booking.node
    return bench


def grants_of(bench: Bench) -> list[msg.Grant]:
    return only(msg.Grant, bench.allocator.ctx.facts.ledger.values())


def test_room_is_made_for_a_large_request(tidy):
    """The whole course: promised, the small one's next place booked, evicted, both placed."""
    tidy.asks(asked("large", WHOLE))
    passes(tidy, COOLDOWN_S - 60)
    promise, kept, ordered = passes(tidy, 180)
    assert (promise.booking.name, promise.evict) == ("large", False)
    assert (kept.booking.name, kept.after, kept.evict) == ("small-1", promise.after, True)
    assert kept.booking.node != promise.booking.node
    assert ordered.request == "small-1"
    (old,) = [each for each in grants_of(tidy) if each.booking.allocation == kept.after[0]]

    evicted(tidy, "small-1")
    granted = tidy.asks(asks("small-2", substitute="no", movable=True))[0]
    assert granted.booking.node == kept.booking.node
    tidy.settle(tidy.gone(kept))
    end(tidy, old, "containers ended")
    ready = tidy.words(tidy.ready(promise)) + tidy.words(tidy.ready(granted))
    assert [each.request for each in only(msg.Bound, ready)] == ["large", "small-2"]


def test_a_moved_pod_with_a_share_has_the_place_that_was_kept_for_it_although_there_is_room_beside():
    """It would be granted, given up because of that room, and granted again when it is free of both: its pod waits."""
    bench = working_allocator(SchedulerConfig(promise_after_s=1e6, defragment=True, defragment_arrivals=1))
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0, mig=False),), modes=MODES))
    bench.run(asked("other", mps(15_000)))
    cordon = subjects.cordon(NodeName("node-b"))
    bench.observe(cordon, msg.Cordoned(node=NodeName("node-b")))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=MODES))
    old = bench.run(asks("web-1", mps(10_000), substitute="no", movable=True))
    bench.observe(cordon, msg.Uncordoned(node=NodeName("node-b")))
    passes(bench, COOLDOWN_S)
    bench.asks(asked("large", claim(profile=None)))
    *_, kept, ordered = passes(bench, 60)
    assert (old.booking.node, kept.booking.node) == ("node-a", "node-b")
    assert ordered.cause == "it is moved: a place on node-b is kept for its replacement (a share)"

    evicted(bench, "web-1")
    end(bench, old)
    again = bench.request(asks("web-2", mps(10_000), substitute="no", movable=True))
    granted, revoked = bench.words(again, but=msg.Pending)
    assert (type(granted), granted.after) == (msg.Grant, (kept.booking.allocation,))
    assert (type(revoked), revoked.booking) == (msg.Revoke, kept.booking)
    bench.settle(bench.gone(kept))
    (bound,) = only(msg.Bound, bench.words(bench.ready(granted)))
    assert bound.allocation == granted.booking.allocation


def test_room_is_only_proposed_where_moves_are_off():
    """Restarts of other people's pods are the operator's decision."""
    bench = tidied(defragment=False)
    bench.asks(asked("large", WHOLE))
    assert passes(bench, 3 * COOLDOWN_S) == []
    standing = how_it_stands(bench.allocator.ctx, RequestId("large"))
    assert [(each.name, each.memory_mib) for each in standing.plan.moves] == [("small-1", 4864)]
    assert (standing.plan.gains_mib, standing.plan.node) == (40320, standing.plan.moves[0].from_node)


def test_no_pod_is_moved_for_a_request_that_never_preempts(tidy):
    """A move evicts a pod, and such a request has said that it only waits."""
    tidy.asks(high("large", WHOLE, priority=0, preempts=False))
    assert passes(tidy, 3 * COOLDOWN_S) == []
    assert how_it_stands(tidy.allocator.ctx, RequestId("large")).plan is None


def test_no_pod_is_moved_for_a_promise_to_a_request_that_never_preempts():
    """What waits longest is promised a place, which its tenants leave when they are done."""
    bench = tidied(promise_after_s=60)
    bench.asks(high("large", WHOLE, priority=0, preempts=False))
    said = passes(bench, 3 * COOLDOWN_S)
    assert only(msg.Grant, said)[0].booking.name == "large"
    assert only(msg.EvictionOrdered, said) == []


def test_no_pod_is_moved_any_more_when_the_large_one_is_gone(tidy):
    """It was withdrawn while its room was being made: pods that were not evicted yet stay."""
    tidy.asks(asked("large", WHOLE))
    passes(tidy, COOLDOWN_S + 120)
    landed = tidy.withdraw("large")
    assert [each.booking.name for each in only(msg.Revoke, landed)] == ["large", "small-1"]
    assert msg.EvictionOver(request=RequestId("small-1")) in landed


def test_a_restart_between_promise_and_move_goes_on(tidy):
    """The allocator dies when the large one is promised its place and no pod is moved yet: the next one moves it."""
    tidy.asks(asked("large", WHOLE))
    while not any(each.after for each in grants_of(tidy)):
        tidy.now += 30
        said = tidy.handle(Ticked())
        moves = [each for each in said if isinstance(each, Write) and getattr(each.message, "evict", False)]
        tidy.land_all([each for each in said if each not in moves])
    other = restarted(tidy)
    other.asks(*(asked(f"more-{number}", WHOLE) for number in range(2)))
    moved = passes(other, COOLDOWN_S + 120)
    assert [each.request for each in only(msg.EvictionOrdered, moved)] == ["small-1"]


def test_a_bound_pod_is_explained_with_what_it_has_instead_and_what_becomes_of_it(bench):
    """Its owner sees more memory than requested, and later an eviction: both must have a reason."""
    served_by_a_larger_one(bench)
    ctx = bench.allocator.ctx
    larger = (
        "is bound on node-b; it has a larger profile because no 1g.5gb was free; it is moved back (evicted and started "
        f"again there) once one is free and it has stayed for {COOLDOWN_S:.0f} s"
    )
    assert how_it_stands(ctx, RequestId("web-1")).message == larger
    passes(bench, COOLDOWN_S + 60)
    blocked(bench, "web-1", "disruption budget")
    booked = "a place on node-a is reserved for its replacement, and it is evicted"
    said = f"{larger}; {booked}, but the eviction is refused: disruption budget"
    assert how_it_stands(ctx, RequestId("web-1")).message == said


def test_the_simulated_answer_is_the_real_one(bench):
    """A simulation has to show that the pod would get a larger profile, and on which node."""
    bench.asks(asked("full", WHOLE))
    keys = {"sluice.dev/profile": "1g.5gb", "sluice.dev/substitute": "true"}
    found = simulate(bench.allocator.ctx, PodAsked("default", keys, (ContainerRequest("main"),)))[0]
    assert (found.node, found.devices[0].grant.profile, found.instead_of) == ("node-b", "1g.6gb", "1g.5gb")
    (grant,) = bench.asks(asks("p1", substitute="stay"))
    assert grant.booking.devices == (found.devices[0].grant,)


def test_who_was_promised_a_place_loses_no_kept_place(bench: Bench):
    """It may have one of the two: the other would be taken back, and the pod that was evicted for it have none."""
    old, kept = being_moved(bench)
    assert kept.after == (old.booking.allocation,)
    evicted(bench, "web-1")
    # another allocator has promised web-2 the place of web-1, in its turn
    web_2 = {"allocation": AllocationId("web-2_r9_1"), "request": RequestId("web-2"), "name": "web-2"}
    bench.words(bench.reads(replace(old, booking=replace(old.booking, **web_2), after=(old.booking.allocation,))))
    said = bench.asks(asks("web-2"))
    assert not only(msg.Revoke, said)
    assert not any(each.evict for each in only(msg.Grant, said))


def test_nothing_is_evicted_while_no_place_is_free(bench):
    """mig-adapter 1: it restarts pods even when nothing is free, and each restart sets off the next."""
    bench.run(asked("full", WHOLE))
    bench.run(asks("web-1"))
    assert passes(bench, 5 * COOLDOWN_S) == []
