"""The judge catches what it is there for: each bug is planted, found within few seeds, and absent without it."""

from collections.abc import Callable

import pytest
from simulation.harness.search import assert_found, assert_played, dose
from simulation.plans.plan import draw_plan
from simulation.planted.bug import PlantedBug, planted
from simulation.planted.protocol import BUGS
from simulation.schedules.unanswered import another_grants_the_place_meanwhile, its_pod_is_removed_meanwhile

DOSE = 100
"""Seeds within which every bug must be found: a twentieth of what CI plays."""
PLAIN = ("cluster", "lost together")
"""Left out where bugs are looked for: those about clusters have `test_kube`, those about losses `test_forgotten`."""
FOUND_AT = {
    "unreadable processes count as none": 5,
    "processes of claims not looked for": 14,
    "preemptionPolicy Never ignored": 3,
    "evicted before booked": 4,
    "mode left behind": 9,
    "late grant": 5,
    "alternatives not tried": 63,
    "drain overlooks bound pods": 23,
    "Unprepare waits for the slice": 8,
    "home destroyed by a refused start": 6,
    "CDI file left to Unprepare": 8,
    "free at revoke": 19,
    "Prepare waits for ever": 59,
    "booked pods not counted as peers": 5,
    "empty hosts ignored for spread": 9,
    "nothing adopted": 7,
    "stale home after a reboot": 8,
    "kept place given twice": 39,
    "moved to and fro": 17,
    "reservation forgotten by a wipe": 3,
    "other pods' holders block a revoke": 4,
    "guarantee ignored": 39,
    "dead scheduler counted as running": 5,
    "silent processes not reported": 25,
    "stale snapshot adopts a node": 5,
    "orphans at once": 28,
    "first ready slice bound": 67,
    "absence destroys": 37,
    "all MPS clients terminated": 5,
    "group bound one by one": 5,
    "moved without cooldown": 9,
    "kept place never given up": 4,
    "reservation started too early": 54,
    "after omitted": 13,
    "victims of others relax": 43,
    "home ends with its scheduler": 3,
    "drained by the ledger alone": 12,
    "statuses without entry stay": 3,
    "first revision reported always": 14,
}
"""Where in the dose rare ones were found last."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_judge_catches_a_planted_bug(bug: PlantedBug) -> None:
    """A rule is broken on purpose; some invariant fails, and the same plan passes with the rule in place."""
    seeds = dose(DOSE, FOUND_AT.get(bug.name, 0))
    assert_found(bug, (bug.focus(draw_plan(seed, PLAIN)) for seed in seeds))


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("settled by a read", its_pod_is_removed_meanwhile),
        ("unanswered write sent with a newer guard", another_grants_the_place_meanwhile),
    ],
)
def test_a_named_interleaving_catches_what_it_is_about(name: str, schedule: Callable[[], None]) -> None:
    """Without chance: the schedule that passes as it is breaks the bug's own invariant once the bug is planted."""
    assert_played(schedule, next(bug for bug in BUGS if bug.name == name))


def test_every_bug_is_looked_for_in_the_whole_dose() -> None:
    """Beginning where a bug was found last leaves no seed out, and names no bug that is not there any more."""
    assert FOUND_AT.keys() <= {bug.name for bug in BUGS}
    assert all(sorted(dose(DOSE, first)) == list(range(DOSE)) for first in FOUND_AT.values())


def test_planting_leaves_nothing_behind() -> None:
    """After a planted bug the rules are what they were."""
    before = [getattr(where, name) for bug in BUGS for where, name, _ in bug.patches]
    for bug in BUGS:
        with planted(bug):
            pass
    assert [getattr(where, name) for bug in BUGS for where, name, _ in bug.patches] == before
