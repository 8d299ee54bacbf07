"""The interleavings of a node that is removed, each played once on purpose (PROTOCOL §6)."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from simulation.faults.node_removals import BY_MISTAKE, CUT_OFF, OFF
from simulation.harness.search import assert_played, catches
from simulation.judges.judge import LIVING_S, SETTLED_PAST_S, ViolationError
from simulation.plans.pods import Terms
from simulation.planted.allocator.node_removals import (
    GONE_IN_ANOTHER_LIFE,
    OPENED_UNHEARD,
    REMOVED_HAS_NOTHING,
    never_restarted,
    open_while_closing,
    released_over_nothing,
)
from simulation.planted.allocator.pods_apart import EMPTY_HOSTS_IGNORED
from simulation.schedules.scene import A30_NODE, MIG_NODE, Scene, sliced
from simulation.schedules.unanswered import its_agent_speaks_while_the_end_of_its_head_is_unanswered

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import OperationId


def closed_with_node(writes) -> list[str]:
    """The allocations that were closed without a message of an agent."""
    return [w.message.allocation for w in writes if isinstance(w.message, msg.Closed) and w.message.removed]


def removed_after_a_wipe(scene: Scene) -> None:
    """An agent dies, the bus is wiped, and its node is removed: only a source knows of its slices."""
    scene.wait(2.0)
    scene.host("agent-node-0").kill()
    scene.strike("broker wipe")
    scene.wait(10.0)
    scene.world.removals.say("node-0")


def test_the_judge_allows_a_release_of_before_a_wipe_while_its_node_is_gone() -> None:
    """That its slice went with its node was said in time, and is so when it lands."""
    scene = Scene(MIG_NODE, MIG_NODE)
    before = scene.serve("a", sliced("7g.40gb"))
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Released))
    scene.strike("node removed", before.node, lasts_s=500.0, number=OFF)
    scene.until(lambda: bool(lost), longest_s=60.0)
    scene.wipe()
    scene.land(replace(lost[0], expected=0))
    scene.until(lambda: scene.runs("a"), longest_s=60.0)
    after = scene.bound("a")
    assert after.request != before.request
    scene.world.agents[before.node].start()
    scene.finish()


def test_what_its_agent_gave_back_does_not_go_with_a_node_that_was_removed_once() -> None:
    """An operator would read of a lost slice, and hunt for an error that is not there."""
    scene = Scene()
    landed = scene.landed()
    scene.serve("a", sliced("3g.20gb"))
    scene.strike("node removed", "node-0", number=BY_MISTAKE)
    scene.until(lambda: any(isinstance(w.message, msg.NodeOpened) for w in landed))
    scene.wait(20.0)  # its agent is alive, and nothing of its node is closed
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Released), times=1)
    scene.remove("a")
    scene.until(lambda: bool(lost))
    scene.world.broker.wipe()
    scene.wait(2.0)  # it is published again while the bus has nothing, not even the removal
    assert not closed_with_node(landed)
    scene.world.broker.ensure()
    scene.finish()


def test_what_is_gone_and_went_with_its_node_is_closed_again_for_each_run_of_its_agent() -> None:
    """Its agent's message landed after it was closed; then the agent dies again and again before the last one."""
    scene = Scene()
    landed = scene.landed()
    scene.serve("a", sliced("3g.20gb"))
    late = scene.lose(lambda _host, write: isinstance(write.message, msg.SliceGone))
    scene.remove("a")
    scene.until(lambda: bool(late))
    agent = scene.host("agent-node-0")
    agent.kill()
    scene.world.removals.say("node-0")
    scene.until(lambda: bool(closed_with_node(landed)), longest_s=40.0)
    scene.land(late[0])
    scene.wait(1.0)
    assert [w for w in landed if isinstance(w.message, msg.SliceGone)]
    scene.lose(lambda _host, write: isinstance(write.message, msg.SliceGone))
    for runs in (1, 2):
        agent.start()
        scene.until(lambda runs=runs: sum(isinstance(w.message, msg.NodeOpened) for w in landed) == runs)  # type: ignore[misc]
        agent.kill()
        scene.wait(1.0)
    assert len(closed_with_node(landed)) == 3
    scene.world.broker.fate_of = lambda _host, _write: None
    agent.start()
    scene.finish()


def test_a_grant_does_not_land_behind_the_end_of_a_head() -> None:
    """The write is not answered, and the agent publishes meanwhile: the node looks open, and is just being closed."""
    assert_played(its_agent_speaks_while_the_end_of_its_head_is_unanswered, open_while_closing)


def test_what_was_to_be_closed_with_a_node_stays_when_its_agent_speaks() -> None:
    """What closes the first of its slices is without an answer until then; the others wait for their turn behind it."""
    scene = Scene(MIG_NODE)
    pods = [f"pod-{number}" for number in range(4)]
    scene.serve_all(pods, sliced("1g.5gb"))
    before, landed = [scene.bound(pod) for pod in pods], scene.landed()
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Closed))
    scene.strike("node removed", "node-0", lasts_s=500.0, number=CUT_OFF)
    scene.until(lambda: bool(lost), longest_s=40.0)
    scene.host("agent-node-0").start()
    scene.wait(3.0)
    scene.lose(lambda _host, _write: False)
    scene.wait(5.0)
    assert len(closed_with_node(landed)) == 1, "it is the same write, whatever was read meanwhile (W3)"
    assert not [w for w in landed if isinstance(w.message, (msg.Revoke, msg.Released))]
    assert [scene.bound(pod) for pod in pods] == before
    scene.finish()


def test_the_judge_knows_that_what_closes_a_slice_with_its_node_is_said_again_as_it_was() -> None:
    """It has no answer until all processes observe its agent; then it lands, and the slice is entered again."""
    scene = Scene(MIG_NODE)
    scene.serve("a", sliced("3g.20gb"))
    before, landed = scene.bound("a"), scene.landed()
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Closed))
    scene.strike("node removed", "node-0", lasts_s=500.0, number=CUT_OFF)
    scene.until(lambda: bool(lost), longest_s=40.0)
    scene.host("agent-node-0").start()
    scene.wait(LIVING_S + 1.0)
    scene.lose(lambda _host, _write: False)
    scene.wait(5.0)
    assert closed_with_node(landed)
    assert scene.bound("a") == before
    scene.finish()


@catches(never_restarted)
def test_what_is_granted_on_a_node_that_is_back_is_not_closed_by_who_reads_late() -> None:
    """Its place would be free in the ledger, with another tenant's instance on it.
    Its agent is back after its grants were closed; `allocator-b` observes that much later, and of BOOK first."""
    scene = Scene(MIG_NODE, allocators=2)
    scene.strike("node removed", "node-0", lasts_s=40.0, number=OFF)
    scene.wait(39.0)
    heard = {stream: scene.stall("allocator-b", stream) for stream in (Stream.BOOK, Stream.STATE)}
    for number in range(4):
        scene.pod(f"pod-{number}", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("pod-3"))
    scene.wait(LIVING_S)
    heard[Stream.BOOK]()
    scene.wait(1.0)
    heard[Stream.STATE]()
    scene.finish()


@catches(OPENED_UNHEARD)
def test_a_node_is_not_opened_on_what_was_known_before_it_was_removed() -> None:
    """Processes still run in a place that no ledger books any more, and no picture of then shows.
    `allocator-b` reads that a head and a grant are closed, and of a pod that wants the place, first."""
    scene = Scene(MIG_NODE, allocators=2)
    landed = scene.landed()
    heard = {stream: scene.stall("allocator-b", stream) for stream in (Stream.BOOK, Stream.STATE)}
    scene.serve("first", sliced("7g.40gb"), lingers_s=30.0)
    scene.strike("node removed", "node-0", lasts_s=25.0, number=CUT_OFF)
    scene.until(lambda: bool(closed_with_node(landed)), longest_s=40.0)
    heard[Stream.BOOK]()
    scene.pod("second", sliced("7g.40gb"))
    scene.until(lambda: any(asked.name == "second" for asked in scene.world.judge.requests.values()))
    scene.let_hear("allocator-b", f"sluice.request.{scene.request('second')}")
    scene.wait(1.0)
    heard[Stream.STATE]()
    scene.finish()


@catches(GONE_IN_ANOTHER_LIFE)
def test_a_pod_keeps_its_slice_although_its_end_lands_in_another_life_of_the_bus() -> None:
    """Its node was not declared gone, and its agent lives.
    Only its source remembers a removed node's slice; what closes it lands after one more wipe."""
    scene = Scene()
    scene.serve("a", sliced("7g.40gb"))
    removed_after_a_wipe(scene)
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Closed))
    scene.until(lambda: bool(lost), longest_s=40.0)
    scene.host("allocator-a").pause()
    scene.host("agent-node-0").start()
    scene.strike("broker wipe")
    scene.wait(25.0)
    landed = scene.landed()
    scene.land(lost[0])
    scene.host("allocator-a").resume()
    scene.wait(5.0)
    assert closed_with_node(landed)
    assert not [w for w in landed if isinstance(w.message, (msg.Revoke, msg.Released))]
    assert scene.runs("a")
    scene.finish()


@catches(released_over_nothing)
def test_a_pod_keeps_its_slice_although_its_loss_is_told_in_another_life_of_the_bus() -> None:
    """Its source would end it, though its node was not declared gone and its agent lives.
    As above, but what closes it landed before the wipe, and the release of its pod is still on its way."""
    scene = Scene()
    scene.host("pod-watcher").pause()
    scene.pod("a", sliced("7g.40gb"))
    scene.wait(SETTLED_PAST_S + 1.0)
    scene.host("pod-watcher").resume()
    scene.until(lambda: scene.runs("a"))
    before = scene.bound("a")
    removed_after_a_wipe(scene)
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.Released))
    scene.until(lambda: bool(lost), longest_s=40.0)
    scene.host("allocator-a").kill()
    scene.host("agent-node-0").start()
    scene.strike("broker wipe")
    scene.wait(20.0)
    scene.land(lost[0])
    scene.host("allocator-a").start()
    scene.wait(5.0)
    assert scene.runs("a")
    after = scene.bound("a")
    assert (after.allocation, after.ticket) == (before.allocation, before.ticket)
    scene.finish()


@catches(REMOVED_HAS_NOTHING)
def test_a_pod_is_not_released_by_who_has_not_heard_that_its_node_is_back() -> None:
    """Its slice is there, and so is its ledger entry: a late reader must be refused.
    A removed node is back after a wipe; one allocator entered its slices, the other is cut off."""
    scene = Scene(MIG_NODE, allocators=2)
    scene.serve("a", sliced("7g.40gb"))
    removed_after_a_wipe(scene)
    scene.wait(5.0)
    for stream in (Stream.BOOK, Stream.STATE):
        scene.stall("allocator-b", stream)
    landed = scene.landed()
    unheard = scene.lose(lambda _host, write: isinstance(write.message, msg.SliceReady))
    scene.host("agent-node-0").start()
    scene.wait(15.0)
    assert unheard
    assert [w for w in landed if isinstance(w.message, msg.Grant)]
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.wait(5.0)
    assert not [w for w in landed if isinstance(w.message, msg.Released)]
    scene.finish()


@pytest.mark.parametrize("is_said_again", [False, True])
def test_the_judge_knows_that_a_pod_is_released_again_as_it_was(is_said_again: bool) -> None:
    """A node is silent when its pod is released; that is unanswered, and is repeated when the agent is back."""
    scene = Scene(MIG_NODE)
    scene.serve("a", sliced("1g.5gb"))
    scene.wait(LIVING_S)
    judge, bound = scene.world.judge, scene.bound("a")
    judge.removed[bound.node] = None
    del judge.ledger[bound.node][bound.allocation]  # a wipe, say
    released, operation = msg.Released(request=bound.request, cause="pod gone"), OperationId("r")
    if is_said_again:
        judge.decided_in[operation] = "life"
    with nullcontext() if is_said_again else pytest.raises(ViolationError, match="whose agent lives"):
        judge._answering(released, operation, "life")


@catches(EMPTY_HOSTS_IGNORED)
def test_a_removed_node_is_no_host_to_spread_over() -> None:
    """Two pods spread; when the second node with their profile is removed, both may be on the one that is left."""
    scene = Scene(MIG_NODE, A30_NODE)
    scene.serve("a", sliced("1g.5gb"), terms=Terms("llm", spread=True))
    scene.pod("b", sliced("1g.5gb"), terms=Terms("llm", spread=True))
    scene.wait(3.0)
    assert scene.bound("b") is None
    scene.host("inventory").crash()
    scene.strike("node removed", "node-1", lasts_s=500.0, number=OFF)
    scene.until(lambda: scene.runs("b"), longest_s=40.0)
    assert {bound.node for bound in (scene.bound("a"), scene.bound("b")) if bound is not None} == {"node-0"}
