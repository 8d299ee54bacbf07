"""How many more nodes of which pool would serve what waits, and what is learned and published of pools."""

from dataclasses import replace

import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, messages, only, working_allocator
from msgspec import structs

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName
from sluice_allocator.core.capacity.demand import published
from sluice_allocator.core.capacity.node_count import PLACES_MAX
from sluice_allocator.core.config import SchedulerConfig

TYPE = "node.kubernetes.io/instance-type"
NVIDIA = msg.Taint(key="nvidia.com/gpu")
RULES = SchedulerConfig(nodes_asked_max=10)
HOST = msg.HostFacts(
    cpu_cores=16,
    memory_mib=65536,
    pods_free=100,
    labels={TYPE: "p4d", "kubernetes.io/hostname": "a", "zone": "a"},
    taints=(NVIDIA, msg.Taint(key="node.kubernetes.io/not-ready")),
    source=FOLDER,
    allocatable=msg.HostRoom(cpu_milli=16_000, memory_mib=65536),
)
READY = structs.replace(HOST, taints=(NVIDIA,))
TOLERATES = msg.HostNeeds(tolerations=(msg.Toleration(key="nvidia.com/gpu", operator="Exists"),))


def add(bench: Bench, name: str = "a", facts: msg.HostFacts = HOST, gpus: int = 1) -> None:
    bench.land_all(bench.observe(subjects.host(NodeName(name)), facts))
    bench.add_nodes(name, gpus=gpus)


def pass_time(bench: Bench, times: int = 4) -> list:
    said = []
    for _ in range(times):
        bench.now += RULES.nodes_asked_every_s
        said += messages(bench.land_all(bench.tick()))
    return said


def ask(bench: Bench, *names: str, host: msg.HostNeeds = TOLERATES, profile: str = "3g.20gb", **changes) -> None:
    """Pods ask for 3g.20gb, of which two fit on a GPU, unless given otherwise."""
    for name in names:
        bench.land_all(bench.request(structs.replace(asked(name, claim(profile=profile)), host=host, **changes)))


def demand(bench: Bench) -> msg.PoolDemand:
    ctx = bench.allocator.ctx
    (name,) = ctx.node_pools.counted
    return published(ctx, name)


@pytest.fixture
def bench() -> Bench:
    """A pool is known of which the only node is gone."""
    bench = working_allocator(RULES)
    add(bench)
    pass_time(bench, 1)
    node, empty = NodeName("a"), msg.HostFacts(cpu_cores=0, memory_mib=0, pods_free=0, cordoned=True)
    bench.observe(subjects.host(node), empty)
    bench.land_all(bench.observe(subjects.node(node), msg.NodeRemoved(node=node, cause="test")))
    return bench


def test_a_pool_is_learned_from_its_node_and_asked_for_when_it_has_none(bench: Bench) -> None:
    """Five halves of a GPU: three nodes. Of two counts the first says nothing yet."""
    ask(bench, *"bcdef")
    assert demand(bench).missing == 0
    pass_time(bench, 1)
    assert demand(bench).missing == 0, "one count may be of a moment"
    pass_time(bench, 1)
    pool = demand(bench)
    assert (pool.missing, pool.selector, pool.source) == (3, {TYPE: "p4d"}, FOLDER)
    assert pool.template.taints == (NVIDIA,)
    assert pool.template.labels == {TYPE: "p4d", "zone": "a"}


def test_a_waiting_pod_says_which_nodes_were_asked_for(bench: Bench) -> None:
    """Otherwise its owner does not know whether anything is being done about it."""
    ask(bench, "b", "c", "d")
    last = only(msg.Pending, pass_time(bench, 6))[-1]
    assert last.message.endswith(f". Asked the autoscaler for 2 more nodes of pool {demand(bench).pool}")


REFUSES = {
    "a taint": {"host": msg.HostNeeds()},
    "another label": {"host": structs.replace(TOLERATES, node_selector={"zone": "b"})},
    "more CPU than it has": {"host": structs.replace(TOLERATES, room=msg.HostRoom(cpu_milli=17_000))},
    "one node by its name": {"host": structs.replace(TOLERATES, node_name="a")},
    "a profile that its GPUs lack": {"profile": "1g.23gb"},
    "another cluster": {"source": "other"},
}


@pytest.mark.parametrize("changes", REFUSES.values(), ids=REFUSES)
def test_no_machine_is_started_that_could_not_serve(bench: Bench, changes) -> None:
    """It would run for nothing, be removed as idle, and be asked for again."""
    ask(bench, "b", **changes)
    pass_time(bench)
    assert demand(bench).missing == 0


def test_no_machine_is_started_for_what_waits_for_its_quota(bench: Bench) -> None:
    bench.limit(gpus=0)
    ask(bench, "b")
    pass_time(bench)
    assert demand(bench).missing == 0


def test_replicas_apart_from_each_other_are_a_node_each(bench: Bench) -> None:
    apart = msg.PodTerm(topology_key="kubernetes.io/hostname", namespaces=("default",))
    ask(bench, "b", "c", "d", host=structs.replace(TOLERATES, apart=(apart,)))
    pass_time(bench)
    assert demand(bench).missing == 3


def test_a_group_is_counted_whole(bench: Bench) -> None:
    """Its pods start together or not at all: asking for one node after the other would strand the first."""
    ask(bench, *"bcde", group=msg.PodGroup(name="g", size=4))
    pass_time(bench)
    assert demand(bench).missing == 2


def test_an_impossible_number_of_pods_asks_for_a_bounded_number_of_nodes(bench: Bench) -> None:
    """What is asked for costs money, and each count the allocator's time."""
    ask(bench, *(f"p{number}" for number in range(PLACES_MAX + 10)))
    pass_time(bench)
    assert demand(bench).missing == RULES.nodes_asked_max


def test_a_pool_is_remembered_by_the_next_allocator_and_asked_for_no_more_when_that_is_switched_off(
    bench: Bench,
) -> None:
    pool = structs.replace(demand(bench), missing=2)
    entry = (subjects.pool(pool.pool), pool)
    following = working_allocator(RULES, entry)
    ask(following, "b")
    pass_time(following)
    assert demand(following).missing == 1
    off = working_allocator(SchedulerConfig(), entry)
    pass_time(off)
    assert demand(off).missing == 0


def test_nothing_is_published_of_pools_by_default() -> None:
    bench = working_allocator(SchedulerConfig())
    add(bench)
    ask(bench, *"bcdef")
    assert not only(msg.PoolDemand, pass_time(bench))


def test_a_pool_keeps_the_most_room_and_the_labels_that_all_its_nodes_have(bench: Bench) -> None:
    """Other pods on one node, or its zone, are not what a new node has."""
    labels = {**HOST.labels, "zone": "b"}
    add(bench, "other", structs.replace(HOST, labels=labels, cpu_cores=3, memory_mib=100_000), gpus=2)
    pass_time(bench, 1)
    template = demand(bench).template
    assert template.labels == {TYPE: "p4d"}
    assert (template.room.cpu_milli, template.room.memory_mib) == (16_000, 100_000)
    assert [each.count for each in template.gpus] == [2]


def test_a_described_pool_serves_before_it_ever_had_a_node() -> None:
    seen = working_allocator(RULES)
    add(seen)
    pass_time(seen, 1)
    described = structs.replace(demand(seen), pool="written", source="")
    bench = working_allocator(replace(RULES, node_pools=(described,)))
    ask(bench, "b")
    pass_time(bench)
    assert demand(bench) == structs.replace(described, missing=1)
    add(bench, facts=READY)
    pass_time(bench)
    assert demand(bench) == described
