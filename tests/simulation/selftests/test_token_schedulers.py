"""The time quota of a home under seeded processes: a dose, always the same seeds; broken schedulers are caught."""

import pytest
from simulation.planted.node.token_schedulers import PLANTED
from simulation.world.token_world import TokenWorld

SEEDS = range(6)
UNTIL_US = 1_500_000


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tenant_gets_its_request_while_none_does_harm(seed):
    """A tenant is kept below its request though it wants the device, or waits for ever."""
    assert TokenWorld(seed, calm=True).run(UNTIL_US) > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_stay_right_among_processes_that_die_stall_and_lie(seed):
    """Two tenants compute on the same SMs, a limit is exceeded, or a dead process keeps its token."""
    assert TokenWorld(seed, calm=False).run(UNTIL_US) > 5


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_scheduler_is_caught(name):
    """The judge would let a broken scheduler pass."""
    make, broken = PLANTED[name]
    with broken(), pytest.raises(AssertionError):
        _play(make)


def test_a_seed_plays_the_same_again():
    """A failing seed cannot be looked into."""
    given = {TokenWorld(3, calm=False).run(UNTIL_US) for _ in range(2)}
    assert len(given) == 1


def _play(make):
    for seed in range(12):
        for calm in (True, False):
            TokenWorld(seed, calm, make).run(UNTIL_US)
