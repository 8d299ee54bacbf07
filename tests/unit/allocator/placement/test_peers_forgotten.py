"""What is kept of pods and of their terms goes with the last of them: an allocator runs for months."""

from random import Random

import pytest
from factories.scheduling.allocator import FOLDER, asked, claim
from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import HostFacts, HostNeeds, HostPort, NodeExpression, OtherPods, PodTerm, SpreadTerm
from sluice_allocator.core.placement import peer_of
from sluice_allocator.core.placement.affinity.peers import Peers
from sluice_allocator.core.placement.affinity.pod_filters import named_by, pod_filters_for
from sluice_allocator.core.placement.spec.place_request import place_request_of

NODES = [NodeName(f"n{at}") for at in range(4)]
KEYS = ("kubernetes.io/hostname", "zone", "rack")


def needs_of(dice: Random) -> HostNeeds:
    selector = (NodeExpression(key="app", operator=dice.choice(["In", "NotIn"]), values=(dice.choice("ab"),)),)
    term = PodTerm(topology_key=dice.choice(KEYS), selector=selector, namespaces=("default",))
    spread = SpreadTerm(topology_key=dice.choice(KEYS), selector=selector, by_taints=dice.random() < 0.5)
    kinds = {"beside": (term,), "apart": (term,), "spread": (spread,), "ports": (HostPort(port=80),)}
    return HostNeeds(**{kind: kinds[kind] for kind in kinds if dice.random() < 0.5})


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
            others = (OtherPods(namespace="default", labels={"app": dice.choice("ab")}, apart=needs_of(dice).apart),)
            labels = {key: dice.choice("xy") for key in KEYS if dice.random() < 0.7}
            host = HostFacts(cpu_cores=1, memory_mib=1, pods_free=9, labels=labels, others=others, source=FOLDER)
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
