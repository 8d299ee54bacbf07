"""The judge catches what it is there for: each bug is planted, found within few seeds, and absent without it."""

from collections.abc import Callable

import pytest
from simulation.judge import ViolationError
from simulation.plan import draw_plan
from simulation.planted import BUGS
from simulation.planting import Planted, planted
from simulation.unanswered import another_grants_the_place_meanwhile, its_pod_is_removed_meanwhile
from simulation.world import run_plan

DOSE = 100
"""Seeds within which every bug must be found: two thirds of what `make test` runs."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_judge_catches_a_planted_bug(bug: Planted) -> None:
    """A rule is broken on purpose; some invariant fails, and the same plan passes with the rule in place."""
    for seed in range(DOSE):
        plan = bug.focus(draw_plan(seed))
        with planted(bug):
            found = run_plan(plan).violation
        assert not found.startswith("raised"), f"the planted bug crashes instead: {found}"
        if found.partition(":")[0] in bug.caught_by and not run_plan(plan).violation:
            return
    pytest.fail(f"{bug.name} (users lose {bug.loses}) was not found in {DOSE} seeds")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("settled by a read", its_pod_is_removed_meanwhile),
        ("written on newer knowledge", another_grants_the_place_meanwhile),
    ],
)
def test_a_named_interleaving_catches_what_it_is_about(name: str, schedule: Callable[[], None]) -> None:
    """Without chance: the schedule that passes as it is breaks the bug's own invariant once the bug is planted."""
    bug = next(bug for bug in BUGS if bug.name == name)
    with planted(bug), pytest.raises(ViolationError) as found:
        schedule()
    assert found.value.rule in bug.caught_by


def test_planting_leaves_nothing_behind() -> None:
    """After a planted bug the rules are what they were."""
    before = [getattr(where, name) for bug in BUGS for where, name, _ in bug.patches]
    for bug in BUGS:
        with planted(bug):
            pass
    assert [getattr(where, name) for bug in BUGS for where, name, _ in bug.patches] == before
