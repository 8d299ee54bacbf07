"""Time quotas in the simulated world: a dose of the seeds of `make sim TIMED=1`. Its bugs are in `test_planted.py`."""

import pytest
from simulation.plan import draw_plan
from simulation.timekeeping import with_time
from simulation.world import World, run_plan

SEEDS = (0, 3, 5, 9)
"""In which many take turns."""
DOSE = (*range(10, 25), 60)
"""What `make test` plays of the rest: few, for `make sim TIMED=1` plays as many as one likes. 60 once failed."""


@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_is_held_to_his_own_time_whatever_dies(seed: int) -> None:
    """A pod gets another one's part of the time, or none, after its agent or a scheduler was killed."""
    worlds: list[World] = []
    outcome = run_plan(with_time(draw_plan(seed)), attach=worlds.append)
    assert outcome.violation == ""
    assert worlds[0].time.turns > 0, "nobody took turns: the seed shows nothing"


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
