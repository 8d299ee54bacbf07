"""Turns, and aging by promises: no request starves, whichever process is killed."""

import pytest
from simulation.harness.search import assert_found, catches, dose
from simulation.judges.judge import ViolationError
from simulation.plans.plan import draw_plan
from simulation.planted.allocator.turns import BOTH_KEPT, STARVING_BUGS, takes_what_is_there
from simulation.planted.bug import PlantedBug, planted
from simulation.schedules.scene import MIG_NODE, Scene, sliced
from simulation.schedules.starvation import starve

from sluice.contracts.messages import Bound, Revoke


def test_a_large_pod_is_served_although_small_ones_never_stop_coming() -> None:
    """The bound of docs/queue.md: what it waits before it is promised, and the longest time of a tenant there."""
    starve(Scene())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 40, 9), pytest.param(range(1, 60), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("killed", ["allocator-a", "agent-node-0", "pod-watcher"])
def test_a_promise_outlives_a_kill_at_any_step(killed: str, steps: range) -> None:
    """A crash before, between and after: the promise is in the ledger and in the agent's journal, not in a process."""
    for step in steps:
        scene = Scene()
        scene.serve_all(("left", "right"), sliced("3g.20gb"))
        scene.pod("whole", sliced("7g.40gb"))
        scene.wait(0.15 * step)
        scene.strike("crash", killed, lasts_s=0.5)
        scene.wait(4.0)
        scene.remove("left")
        scene.pod("late", sliced("1g.5gb"))
        scene.wait(4.0)
        assert scene.bound("late") is None, f"step {step}: it was put on a promised place"
        scene.remove("right")
        scene.finish(once=lambda scene=scene: scene.runs("whole"))


@catches(takes_what_is_there)
def test_a_lost_journal_mixes_up_no_tenant_and_the_one_who_is_to_come_after() -> None:
    """What is found at a place that is booked twice belongs to who stands there, not to who is promised it.
    A pod ends slowly, its ticket is gone, and another is promised exactly its place; then the agent forgets all."""
    scene = Scene()
    scene.serve("now", sliced("7g.40gb"), lingers_s=6.0)
    scene.pod("later", sliced("7g.40gb"))
    scene.wait(6.0)
    assert len(scene.world.judge.promises("node-0")) == 1
    scene.remove("now")
    scene.until(lambda: not scene.world.machines["node-0"].tickets)
    scene.strike("journal lost", "node-0", lasts_s=0.5)
    scene.wait(3.0)
    assert scene.bound("later") is None
    scene.finish(once=lambda: scene.runs("later"))


def test_a_promised_pod_takes_an_earlier_place_and_what_was_kept_is_free_again() -> None:
    """It runs elsewhere as soon as that is possible; those who waited behind its promise get what was kept for it."""
    scene = Scene(MIG_NODE, MIG_NODE)
    scene.serve_all("ab", sliced("7g.40gb"))
    scene.pod("whole", sliced("7g.40gb"))
    scene.wait(6.0)
    landed = scene.landed()
    request = scene.request("whole")
    (node,) = [n for n in scene.world.machines if scene.world.judge.promises(n)]
    other = next(name for name in ("a", "b") if (bound := scene.bound(name)) is not None and bound.node != node)
    scene.remove(other)
    scene.until(lambda: scene.runs("whole"))
    scene.wait(5.0)
    bound = scene.bound("whole")
    assert bound.node != node
    revoked = [w.message for w in landed if isinstance(w.message, Revoke) and w.message.booking.request == request]
    assert [revoke.booking.node for revoke in revoked] == [node]
    assert sum(isinstance(w.message, Bound) and w.message.request == request for w in landed) == 1
    scene.finish()


@pytest.mark.parametrize("bug", STARVING_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_judge_catches_who_lets_the_large_one_starve(bug: PlantedBug) -> None:
    """Each rule of aging, broken: the one that needs all of the GPU waits for ever, or another is put on its place."""
    with planted(bug), pytest.raises(ViolationError) as found:
        starve(Scene(allocators=2 if "two" in bug.name else 1))
    assert found.value.rule in bug.caught_by


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_judge_catches_two_promises_for_one_request() -> None:
    """Rare, so many worlds are tried: what two allocators promise one request is kept from all others, twice."""
    assert_found(BOTH_KEPT, (BOTH_KEPT.focus(draw_plan(seed)) for seed in dose(200, found_at=49)))
