"""So many pods with slices per node, where an operator says so: counted until they are really gone, and told."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator
from factories.scheduling.placement import Shop, node

from sluice.contracts import messages as msg
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.runtime.settings import SettingsError, load
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import NoPlace, PlacementConfig
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.settings import AllocatorSettings

SMALL, WHOLE = claim(profile="1g.5gb"), claim(profile="7g.40gb")
A100 = "NVIDIA A100-SXM4-40GB"


def bench_of(most: int | None, *nodes: str) -> Bench:
    """An allocator that puts so many pods on a node, with these nodes of two GPUs each."""
    bench = working_allocator(SchedulerConfig(placing=PlacementConfig(pods_per_node_max=most)))
    bench.add_nodes(*(nodes or ("node-a",)), gpus=2)
    bench.said.clear()
    return bench


def withdrawn(bench: Bench, grant: msg.Grant) -> list:
    booking = grant.booking
    return bench.words(bench.ends(booking.request))


def test_one_pod_more_than_its_operator_allows_waits_beside_a_free_gpu_and_is_told_why():
    bench = bench_of(2)
    bench.bound("p1", WHOLE)
    bench.bound("p2", SMALL)
    assert bench.words(bench.request(asked("p3", SMALL))) == [
        msg.Pending(
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
    leeway = msg.Leeway(preemptible=True)
    victims = []
    for name in ("batch-1", "batch-2"):
        request = msgspec.structs.replace(asked(name, SMALL), leeway=leeway)
        (grant,) = bench.words(bench.request(request))
        bench.words(bench.ready(grant))
        victims.append(grant.booking.allocation)
    said = bench.words(bench.request(asked("service", SMALL, priority=100)))
    (promise,) = [word for word in said if isinstance(word, msg.Grant)]
    assert (len(promise.after), set(promise.after) <= set(victims)) == (1, True)
    assert [type(word) for word in said if isinstance(word, msg.EvictionOrdered)] == [msg.EvictionOrdered]


@pytest.mark.parametrize("told", [True, False], ids=["of nodes that are described", "of nodes without facts"])
def test_full_nodes_do_not_make_decisions_slower(monkeypatch, told):
    """On a large fleet whose nodes are at their limit each decision would look at every node."""
    names = [f"gpu-{number}" for number in range(640)]
    shop = Shop(*(node(name, 1) for name in names), rules=PlacementConfig(pods_per_node_max=1))
    for name in names if told else ():
        shop.cluster.set_host(NodeName(name), msg.HostFacts(cpu_cores=64.0, memory_mib=1 << 20, pods_free=110))
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
    place = shop.ask(SMALL, host=msg.HostNeeds())
    assert not isinstance(place, NoPlace)
    assert place.node == freed
    assert len(looked_at) <= 64


def test_the_limit_is_set_in_the_environment():
    settings = load(AllocatorSettings, service="allocator", environ={"SLUICE_ALLOCATOR_PODS_PER_NODE_MAX": "3"})
    assert settings.placing()[0].pods_per_node_max == 3
    assert settings.rules(settings.placing()[0]).placing.pods_per_node_max == 3
    assert load(AllocatorSettings, service="allocator", environ={}).placing()[0].pods_per_node_max is None


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_limit_of_no_pods_at_all_ends_the_start_in_words(value):
    """A fleet on which nothing starts, without a visible reason."""
    with pytest.raises(SettingsError, match=r"pods_per_node_max|PODS_PER_NODE_MAX"):
        load(AllocatorSettings, service="allocator", environ={"SLUICE_ALLOCATOR_PODS_PER_NODE_MAX": value})


def test_nobody_is_evicted_for_a_pod_whose_given_up_promise_still_counts_on_the_node():
    """A promise would be made and taken back without end, and with each of them a pod be told to go."""
    bench = working_allocator(SchedulerConfig(placing=PlacementConfig(pods_per_node_max=3)))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=("exclusive", "mps")))
    share = claim(modes=("mps",), memory_mib=1000)
    batch = {}
    for name in ("batch-1", "batch-2", "batch-3"):
        request = msgspec.structs.replace(asked(name, share), leeway=msg.Leeway(preemptible=True))
        (grant,) = bench.words(bench.request(request))
        bench.words(bench.ready(grant))
        batch[grant.booking.allocation] = grant
    asks = bench.request(asked("service", share, priority=100))
    (promise,) = [word for word in bench.words(asks) if isinstance(word, msg.Grant)]
    ends, _stays = [grant for allocation, grant in batch.items() if allocation not in promise.after]

    withdrawn(bench, ends)
    bench.words(bench.gone(ends))
    given_up = bench.words(bench.request(asked("service", share, priority=100)))  # somebody looks at it
    assert [(type(word), word.booking.request) for word in given_up if isinstance(word, (msg.Grant, msg.Revoke))] == [
        (msg.Revoke, "service")
    ]
    assert not [word for word in given_up if isinstance(word, msg.EvictionOrdered)]
    granted = [word for word in bench.words(bench.gone(promise)) if isinstance(word, msg.Grant)]
    assert [(grant.booking.request, grant.after, grant.evict) for grant in granted] == [("service", (), False)]
