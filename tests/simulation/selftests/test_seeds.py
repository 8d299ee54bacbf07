"""Random schedules: every seed draws its own world, pods, weather and faults."""

import os

import pytest
from simulation.world.world import run_seed

SEEDS = int(os.environ.get("SEEDS_IN_TESTS", "40"))
"""A dose for a waiting developer; 200 in `.ci/run`, 2,000 in `make doses`, any number in `make sim`."""
CHUNK = 5
LINES_SHOWN = 60


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_slice_is_given_twice_or_lost_whatever_goes_wrong(first: int) -> None:
    """All invariants hold at every instant, and everything comes to rest once the faults stop."""
    for seed in range(first, min(first + CHUNK, SEEDS)):
        outcome = run_seed(seed)
        if outcome.violation:
            again = run_seed(seed, "lines")
            story = "\n".join([*again.plan, *again.lines[-LINES_SHOWN:]])
            pytest.fail(f"seed {seed}: {outcome.violation}\n{story}\nall of it: make sim SEEDS=1 FROM={seed}")
