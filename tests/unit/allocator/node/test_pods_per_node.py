"""So many pods with slices per node, where an operator says so: counted until they are really gone, and shown."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, only, snapshot, working_allocator
from factories.scheduling.placement import Shop, node
from factories.scheduling.preemption import high, low

from sluice.contracts import messages as msg
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


def test_one_pod_more_than_its_operator_allows_waits_beside_a_free_gpu_and_is_told_why():
    bench = bench_of(2)
    bench.bound("p1", WHOLE)
    bench.bound("p2", SMALL)
    (pending,) = bench.asks(asked("p3", SMALL))
    assert pending.message == (
        f"1 x {A100}: no free place of that size; "
        f"1 x {A100}: their node has as many pods with slices as its operator allows"
    )
    assert pending.reasons == (
        ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=1, of=A100, known_as="CardMigTopologyInfeasible"),
        ReasonCount(reason=WaitReason.NODE_PODS_AT_LIMIT, count=1, of=A100),
    )


def test_where_only_the_number_is_in_the_way_one_pod_is_evicted_for_a_more_important_one():
    """A service would wait beside a free GPU for a batch job that said it may be evicted."""
    bench = bench_of(2)
    victims = {bench.run(low(name, SMALL)).booking.allocation for name in ("batch-1", "batch-2")}
    said = bench.asks(high("service", SMALL))
    (promise,) = only(msg.Grant, said)
    assert (len(promise.after), set(promise.after) <= victims) == (1, True)
    assert len(only(msg.EvictionOrdered, said)) == 1


@pytest.mark.parametrize("told", [True, False], ids=["of nodes that are described", "of nodes without facts"])
def test_full_nodes_do_not_make_decisions_slower(monkeypatch, told):
    """On a large fleet whose nodes are at their limit each decision would look at every node."""
    names = [f"gpu-{number}" for number in range(640)]
    shop = Shop(*(node(name, 1) for name in names), rules=PlacementConfig(pods_per_node_max=1))
    for name in names if told else ():
        shop.host(name)
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
    assert shop.ask(SMALL, host=msg.HostNeeds()).node == freed
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


def test_no_pod_is_evicted_for_one_whose_given_up_promise_still_counts_on_the_node():
    """A promise would be made and taken back without end, and with each of them a pod be ordered to go."""
    bench = working_allocator(SchedulerConfig(placing=PlacementConfig(pods_per_node_max=3)))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=("exclusive", "mps")))
    share = claim(modes=("mps",), memory_mib=1000)
    batch = [bench.run(low(name, share)) for name in ("batch-1", "batch-2", "batch-3")]
    (promise,) = only(msg.Grant, bench.asks(high("service", share)))
    ends, _stays = [grant for grant in batch if grant.booking.allocation not in promise.after]

    bench.withdraw(ends.booking.name)
    bench.words(bench.gone(ends))
    given_up = bench.asks(high("service", share))  # a reader looks at it
    changes = only((msg.Grant, msg.Revoke), given_up)
    assert [(type(each), each.booking.request) for each in changes] == [(msg.Revoke, "service")]
    assert not only(msg.EvictionOrdered, given_up)
    (grant,) = only(msg.Grant, bench.words(bench.gone(promise)))
    assert (grant.booking.request, grant.after, grant.evict) == ("service", (), False)
