"""So many pods with slices per node, where an operator says so: counted until they are really gone, and told."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot
from factories.scheduling.placement import Shop, node

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice.contracts.messages import (
    EvictionOrdered,
    Grant,
    HostFacts,
    HostNeeds,
    HostRoom,
    Leeway,
    Pending,
    RequestWithdrawn,
    Revoke,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.runtime.settings import SettingsError, load
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged
from sluice_allocator.core.placement import NoPlace, PlacementConfig
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.settings import AllocatorSettings

SMALL, WHOLE = claim(profile="1g.5gb"), claim(profile="7g.40gb")
A100 = "NVIDIA A100-SXM4-40GB"


def bench_of(most: int | None, *nodes: str) -> Bench:
    """An allocator that puts so many pods on a node, with these nodes of two GPUs each."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(placing=PlacementConfig(pods_per_node_max=most))))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for name in nodes or ("node-a",):
        bench.add_node(snapshot(name, tuple(gpu_report(name, index) for index in range(2))))
    bench.said.clear()
    return bench


def words(bench: Bench, said: list) -> list:
    """Everything lands, until nothing is left to be done: what was said, in order."""
    landed = bench.land_all(said)
    while bench.allocator.unfinished:
        landed += bench.land_all(bench.handle(Continue()))
    return [write.message for write in landed]


def withdrawn(bench: Bench, grant: Grant) -> list:
    booking = grant.booking
    gone = RequestWithdrawn(revision=2, source=booking.source, cause="pod gone")
    return words(bench, bench.observe(subjects.request(booking.request), gone))


def test_one_pod_more_than_its_operator_allows_waits_beside_a_free_gpu_and_is_told_why():
    """Someone would look for the fault in a GPU that is plainly free."""
    bench = bench_of(2)
    bench.bound("p1", WHOLE)
    bench.bound("p2", SMALL)
    assert words(bench, bench.request(asked("p3", SMALL))) == [
        Pending(
            request=RequestId("p3"),
            request_revision=1,
            message=(
                f"1 x {A100}: no free place of that size; "
                f"1 x {A100}: their node has as many pods with slices as its operator allows"
            ),
            reasons=(
                ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=1, of=A100, known_as="CardMigTopologyInfeasible"),
                ReasonCount(reason=WaitReason.NODE_PODS_AT_LIMIT, count=1, of=A100),
            ),
        )
    ]


def test_where_only_the_number_is_in_the_way_one_pod_is_evicted_for_a_more_important_one():
    """A service would wait beside a free GPU for a batch job that said it may be evicted."""
    bench = bench_of(2)
    leeway = Leeway(preemptible=True)
    victims = []
    for name in ("batch-1", "batch-2"):
        request = msgspec.structs.replace(asked(name, SMALL), leeway=leeway)
        (grant,) = words(bench, bench.request(request))
        words(bench, bench.ready(grant))
        victims.append(grant.booking.allocation)
    said = words(bench, bench.request(asked("service", SMALL, priority=100)))
    (promise,) = [word for word in said if isinstance(word, Grant)]
    assert (len(promise.after), set(promise.after) <= set(victims)) == (1, True)
    assert [type(word) for word in said if isinstance(word, EvictionOrdered)] == [EvictionOrdered]


@pytest.mark.parametrize(
    ("free", "most", "why"),
    [
        (1, 3, WaitReason.NODE_INSUFFICIENT_PODS),
        (3, 1, WaitReason.NODE_PODS_AT_LIMIT),
        (1, None, WaitReason.NODE_INSUFFICIENT_PODS),
    ],
)
def test_the_lower_of_kubernetes_limit_and_the_operators_holds_and_is_named(free, most, why):
    """Somebody would raise the wrong one of the two limits."""
    shop = Shop(node("gpu-1", 2), rules=PlacementConfig(pods_per_node_max=most))
    shop.host("gpu-1", pods_free=free)
    assert shop.take(SMALL) is not None
    found = shop.ask(SMALL)
    assert isinstance(found, NoPlace)
    assert [reason.reason for reason in found.reasons] == [why]


def test_what_is_said_of_a_node_later_neither_loses_a_pod_nor_counts_one_twice():
    """A node's facts come and go with its pod-watcher; the count would drift with each."""
    shop = Shop(node("gpu-1", 2), rules=PlacementConfig(pods_per_node_max=2))
    first = shop.take(SMALL)
    shop.host("gpu-1", pods_free=110)
    shop.take(SMALL, room=HostRoom(cpu_milli=100))
    assert isinstance(shop.ask(SMALL), NoPlace)
    shop.cluster.set_host(NodeName("gpu-1"), None)
    assert isinstance(shop.ask(SMALL), NoPlace)
    shop.give_back(first)
    assert shop.take(SMALL) is not None
    assert isinstance(shop.ask(SMALL), NoPlace)
    assert shop.cluster.nodes[NodeName("gpu-1")].pods == 0


@pytest.mark.parametrize("told", [True, False], ids=["of nodes that are described", "of nodes without facts"])
def test_full_nodes_do_not_make_decisions_slower(monkeypatch, told):
    """On a large fleet whose nodes are at their limit each decision would look at every node."""
    names = [f"gpu-{number}" for number in range(640)]
    shop = Shop(*(node(name, 1) for name in names), rules=PlacementConfig(pods_per_node_max=1))
    for name in names if told else ():
        shop.cluster.set_host(NodeName(name), HostFacts(cpu_cores=64.0, memory_mib=1 << 20, pods_free=110))
    first = [shop.take(SMALL) for _ in names]
    assert isinstance(shop.ask(SMALL), NoPlace)
    looked_at = []
    has_room = Node.has_room
    monkeypatch.setattr(Node, "has_room", lambda self, need: looked_at.append(self) or has_room(self, need))
    assert isinstance(shop.ask(SMALL), NoPlace)
    assert len(looked_at) <= 64, "a block of nodes at most, of ten"
    freed = shop.booked[first[333]].node
    shop.give_back(first[333])
    looked_at.clear()
    place = shop.ask(SMALL, host=HostNeeds())
    assert not isinstance(place, NoPlace)
    assert place.node == freed
    assert len(looked_at) <= 64


def test_the_limit_is_set_in_the_environment():
    """It could not be set where Sluice runs as a deployment."""
    settings = load(AllocatorSettings, service="allocator", environ={"SLUICE_ALLOCATOR_PODS_PER_NODE_MAX": "3"})
    assert settings.placing()[0].pods_per_node_max == 3
    assert settings.rules(settings.placing()[0]).placing.pods_per_node_max == 3
    assert load(AllocatorSettings, service="allocator", environ={}).placing()[0].pods_per_node_max is None


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_limit_of_no_pods_at_all_ends_the_start_in_words(value):
    """A fleet on which nothing starts, without a visible reason."""
    with pytest.raises(SettingsError, match=r"pods_per_node_max|PODS_PER_NODE_MAX"):
        load(AllocatorSettings, service="allocator", environ={"SLUICE_ALLOCATOR_PODS_PER_NODE_MAX": value})


def test_a_place_that_is_promised_on_a_node_with_too_many_pods_is_kept():
    """There is room in the home, and none for another pod: it would be promised and taken back without end."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(placing=PlacementConfig(pods_per_node_max=1))))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=("exclusive", "mps")))
    share = claim(modes=("mps",), memory_mib=1000)
    bench.bound("one", share)
    words(bench, bench.request(asked("two", share)))

    bench.now += bench.allocator.ctx.rules.promise_after_s
    (promise,) = [each for each in words(bench, bench.handle(Ticked())) if isinstance(each, Grant)]
    later = []
    for _ in range(5):
        bench.now += 1.0
        later += words(bench, bench.handle(Ticked()))

    assert len(promise.after) == 1
    assert [type(each) for each in later if isinstance(each, (Grant, Revoke))] == []


def test_nobody_is_evicted_for_a_pod_whose_given_up_promise_still_counts_on_the_node():
    """A promise would be made and taken back without end, and with each of them a pod be told to go."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(placing=PlacementConfig(pods_per_node_max=3))))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=("exclusive", "mps")))
    share = claim(modes=("mps",), memory_mib=1000)
    batch = {}
    for name in ("batch-1", "batch-2", "batch-3"):
        request = msgspec.structs.replace(asked(name, share), leeway=Leeway(preemptible=True))
        (grant,) = words(bench, bench.request(request))
        words(bench, bench.ready(grant))
        batch[grant.booking.allocation] = grant
    asks = bench.request(asked("service", share, priority=100))
    (promise,) = [word for word in words(bench, asks) if isinstance(word, Grant)]
    ends, _stays = [grant for allocation, grant in batch.items() if allocation not in promise.after]

    withdrawn(bench, ends)
    words(bench, bench.gone(ends))
    given_up = words(bench, bench.request(asked("service", share, priority=100)))  # somebody looks at it
    assert [(type(word), word.booking.request) for word in given_up if isinstance(word, (Grant, Revoke))] == [
        (Revoke, "service")
    ]
    assert not [word for word in given_up if isinstance(word, EvictionOrdered)]
    granted = [word for word in words(bench, bench.gone(promise)) if isinstance(word, Grant)]
    assert [(grant.booking.request, grant.after, grant.evict) for grant in granted] == [("service", (), False)]
