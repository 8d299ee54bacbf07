"""Which pods may be beside which: small pods on calm nodes, each answer judged by counting all pods again."""

from factories.scheduling.allocator import gpu_report, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from judges.placements import NodeTruth
from properties.asks import PEERS
from properties.facts import NODES, OTHERS
from properties.machine import FleetMachine

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import HostFacts, HostPort

HOSTS = st.builds(
    HostFacts,
    cpu_cores=st.just(64.0),
    memory_mib=st.just(262144),
    pods_free=st.just(110),
    labels=st.fixed_dictionaries({"zone": st.sampled_from("ab")}, optional={"rack": st.sampled_from("12")}),
    source=st.just("folder"),
    ports=st.sampled_from([(), (), (HostPort(port=80),)]),
    others=st.lists(st.sampled_from(OTHERS), max_size=1).map(tuple),
)


@settings(max_examples=150)
@given(st.lists(HOSTS, min_size=2, max_size=4), st.lists(PEERS, min_size=2, max_size=4), st.integers(2, 4))
def test_replicas_are_where_the_scheduler_would_let_them_be(hosts, pods, replicas):
    """Pinned where their terms keep them out they would never start; kept out elsewhere they would wait for nothing."""
    fleet = FleetMachine()
    for name, host in zip(NODES, hosts, strict=False):
        node = NodeTruth(snapshot(name, (gpu_report(name, 0),)), host)
        fleet.truth.nodes[name] = node
        fleet._tell("set_host", NodeName(name), host)
        fleet._tell("show", node.snapshot)
    for asking in pods * replicas:
        fleet._arrive(asking)
