"""What pods say of each other: which may be neighbours is judged before a grant, and shown while one waits."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, all_said, asked, claim, kinds, only, working_allocator

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax import ContainerRequest
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue
from sluice_allocator.core.explain.status import PodAsked, WouldBind, simulate
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search.context import SearchContext

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
LLM = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)
ONE_PER_HOST = msg.HostNeeds(apart=(msg.PodTerm(topology_key=HOSTNAME, selector=LLM, namespaces=("default",)),))
OVER_ZONES = msg.HostNeeds(spread=(msg.SpreadTerm(topology_key=ZONE, selector=LLM),))


def facts(zone: str = "", **more: object) -> msg.HostFacts:
    labels = {ZONE: zone} if zone else {}
    return msg.HostFacts(cpu_cores=64.0, memory_mib=1 << 20, pods_free=110, labels=labels, source=FOLDER, **more)


def bench_of(**nodes: msg.HostFacts) -> Bench:
    """An allocator with these nodes of one GPU with seven small places each."""
    bench = working_allocator(SchedulerConfig())
    for name, host in nodes.items():
        bench.observe(subjects.host(NodeName(name)), host)
        bench.add_nodes(name)
    bench.said.clear()
    return bench


def pod(name: str, host: msg.HostNeeds = msg.HostNeeds(), app: str = "llm", **more: object) -> msg.AllocationRequested:  # noqa: B008
    """A pod with a label, that asks for a small instance."""
    labels = {"app": app} if app else {}
    return msgspec.structs.replace(asked(name, claim(profile="1g.5gb")), host=host, labels=labels, **more)


def ask(bench: Bench, *pods: msg.AllocationRequested) -> list[str]:
    """Where each is granted a place, or the first reason why it waits."""
    last = [only((msg.Grant, msg.Pending), bench.asks(each))[-1] for each in pods]
    return [each.booking.node if isinstance(each, msg.Grant) else each.reasons[0].reason for each in last]


def grants(bench: Bench) -> dict[str, msg.Grant]:
    return {each.booking.request: each for each in only(msg.Grant, bench.said)}


def is_gone(bench: Bench, name: str) -> set[str]:
    """A pod is gone, and so is its slice: the pods that are granted a place by that."""
    before = grants(bench)
    bench.withdraw(name)
    bench.words(bench.gone(before[name]))
    return set(grants(bench)) - set(before)


def test_a_pod_that_the_bus_has_forgotten_keeps_others_out_as_long_as_it_has_its_slice() -> None:
    """A restarted broker forgets its latest messages: two replicas would be on one host until they are back."""
    bench = bench_of(**{"gpu-1": facts()})
    assert ask(bench, pod("a", ONE_PER_HOST)) == ["gpu-1"]
    bench.words(bench.ready(grants(bench)["a"]))
    del bench.state[subjects.request(RequestId("a")).subject]
    bench.words(bench.read_state())
    assert ask(bench, pod("b", ONE_PER_HOST)) == [WaitReason.NODE_POD_ANTI_AFFINITY]
    assert is_gone(bench, "a") == {"b"}


def test_a_pod_that_another_wants_apart_is_kept_out_and_its_equals_are_not() -> None:
    """Terms hold both ways; a pod behind one that is kept out is no pod of that label, and gets its place."""
    bench = bench_of(**{"gpu-1": facts()})
    assert ask(bench, pod("a", ONE_PER_HOST, app="db")) == ["gpu-1"]
    places = ask(bench, pod("b"), pod("c", app="etl"), pod("d", app=""))
    assert places == [WaitReason.NODE_POD_ANTI_AFFINITY, "gpu-1", "gpu-1"]
    (grant,) = only(msg.Grant, bench.withdraw("a"))
    assert (grant.booking.request, grant.booking.node) == ("b", "gpu-1")


def test_who_waits_already_does_not_hold_up_its_equals_when_it_comes_to_be_kept_out() -> None:
    """One that is first of its shape and may not be there any more waits by itself; the next of them is served."""
    bench = bench_of(**{"gpu-1": facts()})
    ask(bench, *(pod(f"full-{at}", app="") for at in range(7)))
    waiting = (pod("db", ONE_PER_HOST, app="db", priority=5), pod("llm"), pod("etl", app="etl"))
    assert ask(bench, *waiting) == [WaitReason.GPU_LAYOUT_FULL] * 3
    assert is_gone(bench, "full-0") == {"db"}
    assert is_gone(bench, "full-1") == {"etl"}


def test_a_zone_without_gpus_counts_as_it_does_for_the_scheduler() -> None:
    """A node without GPUs is a domain too: more than maxSkew beyond its none would be more than the pod allows."""
    bench = bench_of(**{"a-1": facts("a")})
    bench.observe(subjects.host(NodeName("cpu-1")), facts("b"))
    assert ask(bench, pod("p", OVER_ZONES), pod("q", OVER_ZONES)) == ["a-1", WaitReason.NODE_TOPOLOGY_SPREAD]
    bench.observe(subjects.host(NodeName("cpu-1")), facts("a"))
    bench.words(bench.handle(Continue()))
    assert "q" in grants(bench)


RACK = {"topology_key": "rack", "selector": LLM}


@pytest.mark.parametrize(
    "needs",
    [
        msg.HostNeeds(spread=(msg.SpreadTerm(**RACK),)),
        msg.HostNeeds(beside=(msg.PodTerm(**RACK, namespaces=("default",)),)),
    ],
)
def test_a_topology_key_that_no_node_carries_is_named(needs: msg.HostNeeds) -> None:
    """A larger maxSkew would not help: the nodes lack the label, all of them or some."""
    bench = bench_of(**{"gpu-1": facts("a"), "gpu-2": facts("b")})
    (waits,) = only(msg.Pending, bench.asks(pod("p", needs)))
    reasons = [WaitReason.NO_NODE_CAN_FIT, WaitReason.NODE_TOPOLOGY_LABEL_MISSING]
    assert [each.reason for each in waits.reasons[:2]] == reasons
    assert "the label rack" in waits.message
    labelled = msgspec.structs.replace(facts(), labels={"rack": "r1"})
    bench.words(bench.observe(subjects.host(NodeName("gpu-2")), labelled))
    bench.words(bench.handle(Continue()))
    assert grants(bench)["p"].booking.node == "gpu-2"
    ask(bench, *(pod(f"full-{at}", msg.HostNeeds(node_name="gpu-2"), app="") for at in range(6)))
    (waits,) = only(msg.Pending, bench.asks(pod("q", needs)))
    assert WaitReason.NODE_TOPOLOGY_LABEL_MISSING in [each.reason for each in waits.reasons]
    assert WaitReason.NO_NODE_CAN_FIT not in [each.reason for each in waits.reasons]


BESIDE_LLM = msg.HostNeeds(beside=ONE_PER_HOST.apart)


def test_a_pod_waits_for_the_pod_that_it_wants_beside_it() -> None:
    bench = bench_of(**{"gpu-1": facts(), "gpu-2": facts()})
    assert ask(bench, pod("cache", BESIDE_LLM, app="cache")) == [WaitReason.NODE_POD_AFFINITY]
    bench.asks(pod("llm", msg.HostNeeds(node_name="gpu-2")))
    assert {name: each.booking.node for name, each in grants(bench).items()} == {"llm": "gpu-2", "cache": "gpu-2"}


def test_the_first_of_pods_that_want_to_be_together_is_not_kept_waiting_for_itself() -> None:
    bench = bench_of(**{"gpu-1": facts(), "gpu-2": facts()})
    assert ask(bench, *(pod(name, BESIDE_LLM) for name in "abc")) == ["gpu-1"] * 3


def test_a_host_port_is_given_once_on_a_node() -> None:
    """Of ours and of others' pods; another address or protocol is another port."""
    tcp, udp = msg.HostPort(port=8080), msg.HostPort(port=8080, protocol="UDP")
    bench = bench_of(**{"gpu-1": facts(ports=(msg.HostPort(port=9000, ip="10.0.0.1"),)), "gpu-2": facts()})
    wanted = {"a": tcp, "b": tcp, "c": tcp, "d": udp, "e": msg.HostPort(port=9000)}
    places = ask(bench, *(pod(name, msg.HostNeeds(ports=(port,))) for name, port in wanted.items()))
    assert places == ["gpu-1", "gpu-2", WaitReason.NODE_HOST_PORT_TAKEN, "gpu-1", "gpu-2"]


def test_pods_that_are_not_ours_keep_ours_out_as_well() -> None:
    """What their source says of them counts: matched by our term, or wanting ours apart."""
    theirs = msg.OtherPods(namespace="default", labels={"app": "llm"})
    proud = msg.OtherPods(
        namespace="web", labels={"app": "db"}, apart=(msg.PodTerm(topology_key=HOSTNAME, namespaces=("*",)),)
    )
    bench = bench_of(**{"gpu-1": facts(others=(theirs,)), "gpu-2": facts(others=(proud,)), "gpu-3": facts()})
    assert ask(bench, pod("a", ONE_PER_HOST)) == ["gpu-3"]
    bench.observe(subjects.host(NodeName("gpu-1")), facts())
    assert ask(bench, pod("b", ONE_PER_HOST)) == ["gpu-1"]


def test_a_volume_in_one_zone_takes_its_pod_there() -> None:
    """And where no node could have it, that is said as something that does not pass by itself."""
    in_b = (msg.NodeExpression(key=ZONE, operator="In", values=("b",)),)
    bench = bench_of(**{"a-1": facts("a"), "b-1": facts("b")})
    assert ask(bench, pod("p", msg.HostNeeds(volumes=((in_b,),)))) == ["b-1"]
    in_c = (msg.NodeExpression(key=ZONE, operator="In", values=("c",)),)
    waits, *_ = only(msg.Pending, bench.asks(pod("q", msg.HostNeeds(volumes=((in_c,),)))))
    reasons = [each.reason for each in waits.reasons[:2]]
    assert reasons == [WaitReason.NO_NODE_CAN_FIT, WaitReason.NODE_VOLUME_ELSEWHERE]


def test_no_pod_is_evicted_for_a_place_that_the_scheduler_would_refuse() -> None:
    """A victim counts until it is gone, so one that is wanted apart is not evicted for the pod that wants it so."""
    bench = bench_of(**{"gpu-1": facts()})
    weak = msg.Leeway(preemptible=True)
    assert ask(bench, *(pod(f"weak-{at}", leeway=weak) for at in range(7))) == ["gpu-1"] * 7
    assert kinds(bench.asks(pod("strong", ONE_PER_HOST, priority=10))) == [msg.Pending]
    ask(bench, pod("as-strong", app="", priority=10))
    assert grants(bench)["as-strong"].evict  # it would have been, but for that


def test_simulate_answers_as_the_grant_would_be() -> None:
    """The same filters, and the same reasons, before any request."""
    bench = bench_of(**{"gpu-1": facts()})
    bench.observe(*all_said())
    keys, labels = {"sluice.dev/profile": "1g.5gb"}, {"app": "llm"}
    question = PodAsked("default", keys, (ContainerRequest("main"),), ONE_PER_HOST, labels)
    assert isinstance(simulate(bench.allocator.ctx, question)[0], WouldBind)
    assert ask(bench, pod("a", ONE_PER_HOST)) == ["gpu-1"]
    waits = simulate(bench.allocator.ctx, question)[0]
    assert waits.steps[0].reasons[0].reason is WaitReason.NODE_POD_ANTI_AFFINITY


def test_a_node_where_the_scheduler_refused_its_predecessor_is_taken_only_where_there_is_nothing_else() -> None:
    """The pod that a controller makes again would be pinned to the same node, and evicted there, for ever."""
    bench = bench_of(**{"gpu-1": facts(), "gpu-2": facts()})
    shun = msg.HostNeeds(shun=(NodeName("gpu-1"),))
    assert ask(bench, *(pod(f"p{at}", shun) for at in range(8))) == ["gpu-2"] * 7 + ["gpu-1"]


def test_what_is_freed_on_the_only_node_is_given_to_who_would_rather_be_elsewhere() -> None:
    """Each pod that comes meanwhile would be served there before it."""
    bench = bench_of(**{"gpu-1": facts()})
    ask(bench, *(pod(f"p{at}") for at in range(7)))
    (waits,) = ask(bench, pod("shy", msg.HostNeeds(shun=(NodeName("gpu-1"),))))
    assert waits is not None
    assert is_gone(bench, "p0") == {"shy"}


@pytest.mark.parametrize("nodes", [6, 60])
def test_a_decision_looks_at_as_many_nodes_in_a_large_fleet_as_in_a_small_one(monkeypatch, nodes: int) -> None:
    """Nodes with a replica are passed over, and one without is taken: the others are not looked at."""
    looked_at: list[Node] = []
    why = SearchContext.why_not_on
    bench = bench_of(**{f"gpu-{at:02}": facts("ab"[at % 2]) for at in range(nodes)})
    both = msgspec.structs.replace(ONE_PER_HOST, spread=OVER_ZONES.spread)
    ask(bench, *(pod(f"p{at}", both) for at in range(4)))
    monkeypatch.setattr(SearchContext, "why_not_on", lambda look, node: looked_at.append(node) or why(look, node))
    assert ask(bench, pod("p4", both)) == ["gpu-04"]
    assert len(looked_at) <= 6
    looked_at.clear()
    assert ask(bench, pod("plain", app="")) != []
    assert looked_at == [], "a pod without terms asks no node for its pods"
