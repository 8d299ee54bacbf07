"""Two allocators on one small fleet: the dose for every test run. `python tests/pairs --seeds N` plays more."""

import pytest
from pairs.plan import Plan
from pairs.planted import BUGS
from pairs.run import run_plan, run_seed
from simulation.planted.bug import PlantedBug, planted

SEEDS = 40
CHUNK = 5
LINES_SHOWN = 60


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_pod_waits_for_nothing_or_has_a_place_twice_where_two_allocators_work(first: int):
    """What must hold at every moment does, and all comes to rest."""
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed)
        if outcome.violation:
            story = "\n".join(run_seed(seed, told=True).lines[-LINES_SHOWN:])
            pytest.fail(
                f"seed {seed}: {outcome.violation}\n{story}\nall of it: python tests/pairs --seeds 1 --from {seed}"
            )


@pytest.mark.parametrize(("plan", "bug"), BUGS, ids=[bug.name.replace(" ", "-") for _, bug in BUGS])
def test_a_bug_that_was_mended_is_found_when_it_comes_back(plan: Plan, bug: PlantedBug):
    """It is planted, and the judge sees it in a world in which nothing is wrong without it."""
    with planted(bug):
        found = run_plan(plan)
    assert found.rule in bug.caught_by, found.violation
    assert not run_plan(plan).violation
