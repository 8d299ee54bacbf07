"""Nodes that an operator takes out of use: the interleavings that a simpler rule would lose, each played on purpose."""

from dataclasses import dataclass

import pytest
from simulation.harness.search import catches
from simulation.judges.cordons import CordonSaid
from simulation.judges.gpu_tables import GpuRow
from simulation.judges.judge import ViolationError
from simulation.planted.allocator.cordons import promised_for_ever, sent_as_decided
from simulation.planted.bug import planted
from simulation.schedules.scene import MIG_NODE, Scene, sliced
from simulation.world.weather import Weather

from sluice.contracts.messages import Bound, EvictionOrdered, EvictionOver, Grant, RequestWithdrawn, Revoke

TWO_NODES = (MIG_NODE, MIG_NODE)
PODS = ("a", "b", "c")


def _scene(*nodes: tuple[tuple[GpuRow, bool], ...], allocators: int = 1, weather: Weather | None = None) -> Scene:
    return Scene(*nodes, allocators=allocators, weather=weather, folder_evicts=True)


def say(scene: Scene, node: str, *gpus: str, drain: bool = True, lifted: bool = False) -> None:
    scene.world.operator.say(CordonSaid(scene.world.clockwork.now, node, gpus, drain, lifted))


@dataclass(frozen=True, slots=True)
class Before:
    """How the pods ran before a node was drained."""

    node: str
    bound: dict[str, Bound]

    @property
    def there(self) -> list[str]:
        return [name for name, bound in self.bound.items() if bound.node == self.node]


def run_together(scene: Scene) -> Before:
    """Some pods run, and the node on which most of them are is the one to be drained."""
    scene.serve_all(PODS, sliced("2g.10gb"), longest_s=60.0)
    bound = {name: bound for name in PODS if (bound := scene.bound(name)) is not None}
    nodes = [each.node for each in bound.values()]
    return Before(max(nodes, key=nodes.count), bound)


def play(scene: Scene, before: Before) -> None:
    """All pods leave a drained node and run on the other, each requested once more; then it is used again."""

    def has_moved(name: str) -> bool:
        bound = scene.bound(name)
        return bound is not None and bound.node != before.node and scene.runs(name)

    scene.until(lambda: all(has_moved(name) for name in PODS), longest_s=60.0)
    scene.wait(5.0)
    assert all(has_moved(name) for name in PODS)
    asked = [asked.name for asked in scene.world.judge.requests.values()]
    assert {name: asked.count(name) for name in PODS} == {name: 2 if name in before.there else 1 for name in PODS}
    assert [name for name in PODS if scene.request(name) != before.bound[name].request] == before.there
    say(scene, before.node, lifted=True)
    scene.serve("large", sliced("7g.40gb"), longest_s=60.0)
    scene.finish()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 60, 11), pytest.param(range(1, 60), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize(
    ("killed", "allocators"),
    [("allocator-a", 1), ("allocator-a", 2), ("pod-watcher", 1), ("agent-node-0", 1), ("agent-node-1", 2)],
)
def test_a_drain_outlives_a_kill_at_any_step(killed: str, allocators: int, steps: range) -> None:
    """Killed in the middle of the n-th event since the message: no pod is evicted twice, and none is forgotten."""
    for step in steps:
        scene = _scene(*TWO_NODES, allocators=allocators)
        before = run_together(scene)
        scene.kill_after(killed, step)
        say(scene, before.node)
        play(scene, before)


def test_a_drain_that_is_said_again_after_a_wipe_goes_on() -> None:
    """The broker forgets the message and the orders; its writer repeats it, and pods adopted there are evicted."""
    scene = _scene(*TWO_NODES)
    before = run_together(scene)
    scene.host("pod-watcher").kill()
    say(scene, before.node)
    scene.wait(1.0)
    scene.strike("broker wipe")
    scene.wait(3.0)
    scene.host("pod-watcher").start()
    play(scene, before)


def test_an_uncordon_takes_the_orders_back_and_no_pod_goes() -> None:
    """A pod of a node that is in use again would be restarted for nothing, whenever its source comes back."""
    scene = _scene(*TWO_NODES)
    before = run_together(scene)
    scene.host("pod-watcher").kill()
    landed = scene.landed()
    say(scene, before.node)
    scene.until(lambda: any(isinstance(write.message, EvictionOrdered) for write in landed))
    scene.wait(1.0)
    say(scene, before.node, lifted=True)
    ordered = {write.subject for write in landed if isinstance(write.message, EvictionOrdered)}
    scene.until(lambda: ordered == {write.subject for write in landed if isinstance(write.message, EvictionOver)})
    scene.host("pod-watcher").start()
    scene.wait(10.0)
    assert not [write for write in landed if isinstance(write.message, (RequestWithdrawn, Revoke))]
    assert {name: scene.bound(name) for name in PODS} == before.bound
    scene.finish()


def test_a_slice_that_is_being_made_is_bound_first_and_then_its_pod_goes() -> None:
    """The cordon comes just behind a grant: a revoke would race with the binding, and take a pinned pod's slice."""
    scene = _scene(*TWO_NODES)
    landed = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    first = scene.until_lands(Grant)
    say(scene, first.booking.node)

    def runs_elsewhere() -> bool:
        bound = scene.bound("a")
        return bound is not None and bound.node != first.booking.node and scene.runs("a")

    scene.until(runs_elsewhere)
    journey = (Bound, EvictionOrdered, RequestWithdrawn, Revoke)
    mine = [type(w.message) for w in landed if first.booking.request in w.subject and isinstance(w.message, journey)]
    assert list(dict.fromkeys(mine)) == list(journey)
    scene.finish()


def cordon_a_promise(scene: Scene) -> tuple[str, str]:
    """Everything is full, a large pod is promised a place, and its node is cordoned; that one, and the other one."""
    scene.serve_all("abcd", sliced("3g.20gb"))
    scene.pod("large", sliced("7g.40gb"))
    nodes = ("node-0", "node-1")
    scene.until(lambda: any(scene.world.judge.promises(node) for node in nodes))
    promised, other = sorted(nodes, key=lambda node: not scene.world.judge.promises(node))
    say(scene, promised, drain=False)
    return promised, other


def test_a_promise_on_a_node_that_is_cordoned_is_given_back() -> None:
    """A large pod would wait for a place that it may not have, and that would be blocked for all others."""
    scene = _scene(*TWO_NODES)
    promised, other = cordon_a_promise(scene)
    scene.until(lambda: not scene.world.judge.promises(promised))
    scene.until(lambda: bool(scene.world.judge.promises(other)))
    for name in "abcd":
        if (bound := scene.bound(name)) is not None and bound.node == other:
            scene.remove(name)
    scene.finish(once=lambda: scene.runs("large"))


def test_a_promise_that_is_kept_on_a_cordoned_node_is_noticed() -> None:
    """The same with the rule broken: the judge names the allocation that waits and what is held."""
    scene = _scene(*TWO_NODES)
    with planted(promised_for_ever):
        cordon_a_promise(scene)
        with pytest.raises(ViolationError) as found:
            scene.world.until("I4", scene.world.goals.settled, 20.0)
    assert "is promised" in found.value.text


@catches(sent_as_decided)
def test_a_grant_that_waits_for_its_turn_follows_no_cordon() -> None:
    """Its place was found before the cordon was read; by the time it is sent, its writer knows better.
    A grant is not answered; another waits behind it, for the same node, when that is cordoned."""
    scene = _scene(*TWO_NODES)
    bound = scene.serve("a", sliced("2g.10gb"))
    lost = scene.lose(lambda _host, write: isinstance(write.message, Grant), times=1)
    scene.pod("b", sliced("2g.10gb"))
    scene.until(lambda: bool(lost))
    scene.pod("c", sliced("2g.10gb"))
    scene.wait(0.1)
    say(scene, bound.node, drain=False)
    scene.until(lambda: scene.runs("b") and scene.runs("c"))
    other = scene.bound("c")
    assert other.node != bound.node
    scene.finish()
