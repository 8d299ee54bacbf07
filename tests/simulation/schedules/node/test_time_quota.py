"""Time quotas in the simulated world: some seeds of `make sim OPTIONS=--timed`. Its bugs are in `test_planted.py`."""

import pytest
from simulation.judges.time_quota import says_hello, with_time
from simulation.plans.plan import draw_plan
from simulation.plans.pods import fractional, timed
from simulation.schedules.scene import WHOLE_NODE, Scene
from simulation.world.world import World, run_plan

from sluice.contracts.messages import SliceReady

SEEDS = (0, 3, 5, 9)
"""In which many take turns."""
DOSE = (*range(10, 25), 60)
"""What `make test` plays of the rest; `make sim OPTIONS=--timed` plays as many as one likes. 60 once failed."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tenant_is_held_to_its_own_time_whatever_dies(seed: int) -> None:
    """A pod gets another one's part of the time, or none, after its agent or a scheduler was killed."""
    worlds: list[World] = []
    outcome = run_plan(with_time(draw_plan(seed)), attach=worlds.append)
    assert outcome.violation == ""
    assert worlds[0].time.turns > 0, "no process took turns: the seed tests nothing"


@pytest.mark.parametrize("seed", DOSE)
def test_no_slice_is_given_twice_or_lost_where_time_is_enforced(seed: int) -> None:
    """What holds of every seed holds with more tenants for every GPU, and with what keeps their time beside them."""
    assert run_plan(with_time(draw_plan(seed))).violation == ""


def test_all_else_of_a_seed_stays_as_it_was() -> None:
    """A seed that failed once could not be played again."""
    plan = draw_plan(3)
    timed = with_time(plan)
    assert (timed.faults, timed.nodes, timed.weather) == (plan.faults, plan.nodes, plan.weather)
    assert [life.made_at for life in timed.pods] == [life.made_at for life in plan.pods]
    assert plan.timed == ()


def test_a_warning_that_the_bus_forgot_is_not_held_against_the_agent() -> None:
    """A reader of a run would hunt for an agent that says what is so, for the bus says it already."""
    scene = Scene(WHOLE_NODE, timed=True)
    landed = scene.landed()

    def warned() -> list[bool]:
        return [bool(write.message.warnings) for write in landed if isinstance(write.message, SliceReady)]

    scene.serve("p", timed(fractional(50, 2400), 500, 1000))
    assert says_hello(scene.world.judge.requests[scene.request("p")].owner)
    scene.wait(10.0)
    machine = scene.world.machines["node-0"]
    (scheduler,) = machine.time.serving.values()
    scheduler.since = scene.world.clockwork.now + 60.0  # it is unreachable meanwhile
    scene.until(lambda: warned()[-1])
    scheduler.since = 0.0
    scene.strike("broker restart", lasts_s=20.0, number=1)
    scene.wait(25.0)
    again = "a word that is found proves nothing, and the one said over it gets the number that the lost one expected"
    assert warned() == [False, True, False, False], again
    scene.finish()
