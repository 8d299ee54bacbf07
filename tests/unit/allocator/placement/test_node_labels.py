"""Labels that pods select nodes by: classes of nodes stay few, however large the fleet grows."""

from random import Random

import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, only
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice_allocator.core.placement import peer_of
from sluice_allocator.core.placement.affinity.peers import Peers
from sluice_allocator.core.placement.affinity.pod_filters import named_by, pod_filters_for
from sluice_allocator.core.placement.index import device_index
from sluice_allocator.core.placement.spec.place_request import place_request_of

LABEL = "kubernetes.io/hostname"


def joins(bench: Bench, name: str) -> None:
    facts = msg.HostFacts(cpu_cores=8.0, memory_mib=64_000, pods_free=10, labels={LABEL: name, "zone": "a"})
    bench.observe(subjects.host(NodeName(name)), facts)
    bench.add_nodes(name)


def where(bench: Bench, name: str, **labels: str) -> str:
    """The node that a pod is put on which wants these labels."""
    (grant,) = only(msg.Grant, bench.asks(replace(asked(name), host=msg.HostNeeds(node_selector=labels))))
    return grant.booking.node


def test_a_label_comes_to_be_one_of_single_nodes_when_the_fleet_grows(empty: Bench, monkeypatch: pytest.MonkeyPatch):
    """A request selected by host name while there were few: each decision would look at a class for each node."""
    monkeypatch.setattr(device_index, "VALUES_PER_KEY_MAX", 3)
    for number in range(3):
        joins(empty, f"node-{number}")
    assert where(empty, "first", **{LABEL: "node-1"}) == "node-1"
    assert where(empty, "zoned", zone="a")
    kept = empty.allocator.ctx.cluster.index
    assert len(kept.classes) >= 3
    for number in range(3, 9):
        joins(empty, f"node-{number}")
    assert len(kept.classes) <= 2  # one is of nodes of which nothing is said yet
    for number in range(9):
        assert where(empty, f"pod-{number}", **{LABEL: f"node-{number}"}) == f"node-{number}"
        assert where(empty, f"both-{number}", **{LABEL: f"node-{number}", "zone": "a"}) == f"node-{number}"
    assert where(empty, "any", zone="a")


def test_nodes_that_come_and_go_leave_no_classes(empty: Bench, monkeypatch: pytest.MonkeyPatch):
    """An autoscaler gives each node a name of its own: what was once would be looked at by each decision for ever."""
    monkeypatch.setattr(device_index, "VALUES_PER_KEY_MAX", 3)
    joins(empty, "node-0")
    assert where(empty, "first", **{LABEL: "node-0"}) == "node-0"
    for number in range(1, 9):
        joins(empty, f"node-{number}")
        removed = msg.NodeRemoved(node=NodeName(f"node-{number}"), cause="scaled down")
        empty.land_all(empty.observe(subjects.node(NodeName(f"node-{number}")), removed))
    assert len(empty.allocator.ctx.cluster.index.classes) <= 3
    assert where(empty, "last", **{LABEL: "node-0"}) == "node-0"


NODES = [NodeName(f"n{at}") for at in range(4)]
KEYS = ("kubernetes.io/hostname", "zone", "rack")


def needs_of(dice: Random) -> msg.HostNeeds:
    selector = (msg.NodeExpression(key="app", operator=dice.choice(["In", "NotIn"]), values=(dice.choice("ab"),)),)
    term = msg.PodTerm(topology_key=dice.choice(KEYS), selector=selector, namespaces=("default",))
    spread = msg.SpreadTerm(topology_key=dice.choice(KEYS), selector=selector, by_taints=dice.random() < 0.5)
    kinds = {"beside": (term,), "apart": (term,), "spread": (spread,), "ports": (msg.HostPort(port=80),)}
    return msg.HostNeeds(**{kind: kinds[kind] for kind in kinds if dice.random() < 0.5})


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_left_when_all_pods_and_nodes_are_gone(seed: int) -> None:
    """Whatever came and went in between: edits, looks for a place, questions of who does not ask, nodes that change."""
    dice, peers = Random(seed), Peers()
    live: dict[str, list[AllocationId]] = {}
    for step in range(120):
        name = f"p{dice.randrange(12)}"
        pod = replace(asked(name, claim()), host=needs_of(dice), labels={"app": dice.choice("abc")})
        what = dice.randrange(6)
        if what == 0 and name in live:
            _end(peers, name, live.pop(name), dice)
        elif what == 1:
            app, apart = {"app": dice.choice("ab")}, needs_of(dice).apart
            others = (msg.OtherPods(namespace="default", labels=app, apart=apart),)
            labels = {key: dice.choice("xy") for key in KEYS if dice.random() < 0.7}
            host = msg.HostFacts(cpu_cores=1, memory_mib=1, pods_free=9, labels=labels, others=others, source=FOLDER)
            peers.see(dice.choice(NODES), host, is_shown=True)
        elif what == 2 and live.get(name) == []:
            peers.book(AllocationId(f"a{step}"), RequestId(name), dice.choice(NODES))
            live[name].append(AllocationId(f"a{step}"))
        else:
            if what > 3:
                live.setdefault(name, [])
                peers.know(RequestId(name), peer_of(pod))
            pod_filters = pod_filters_for(peers, place_request_of(pod))
            named_by(peers, pod_filters, lambda _: False)
            if what > 3:
                peers.register(RequestId(name), (bar.term_count for bar in pod_filters))
    for name in dice.sample(sorted(live), len(live)):
        _end(peers, name, live[name], dice)
    for node in NODES:
        peers.see(node, None, is_shown=False)
    peers.woken.clear()
    pod_filters_for(peers, place_request_of(asked("plain", claim())))
    kept = {**vars(peers), **vars(peers.census)}
    assert {name: each for name, each in kept.items() if each} == {}


def _end(peers: Peers, name: str, booked: list[AllocationId], dice: Random) -> None:
    """A pod is gone, or the bus has forgotten it; and then its slice."""
    if dice.random() < 0.5:
        peers.know(RequestId(name), None)
    else:
        peers.lose_sight(RequestId(name))
    for allocation in booked:
        peers.unbook(allocation)
