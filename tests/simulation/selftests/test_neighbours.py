"""Neighbours of kept plans: near enough to show the same, and not the same."""

from collections import Counter

import pytest
from simulation.harness.command import main
from simulation.plans.neighbours import APART_S, KEPT, LASTS, neighbour
from simulation.plans.plan_file import read_plan
from simulation.plans.storms import APART

SEEDS = range(300)


def _what(fault):
    return fault.kind, fault.target, fault.number


def _is_near(plan, kept):
    """Whether a plan holds nothing that the other does not hold, each thing at most so far away."""

    def was(fault):
        return any(
            abs(each.at - fault.at) <= (0 if each.kind in APART else max(APART_S))
            and LASTS[0] * each.lasts_s <= fault.lasts_s <= LASTS[1] * each.lasts_s
            for each in kept.faults
            if _what(each) == _what(fault)
        )

    return (
        [life.pod for life in kept.pods] == [life.pod for life in plan.pods]
        and Counter(map(_what, plan.faults)) <= Counter(map(_what, kept.faults))
        and all(map(was, plan.faults))
        and all(abs(a.made_at - b.made_at) <= max(APART_S) for a, b in zip(kept.pods, plan.pods, strict=True))
    )


def test_a_neighbour_holds_nothing_that_its_plan_does_not_hold():
    """What no plan may hold would be called a violation."""
    kept = [read_plan(path).plan for path in KEPT.glob("*.json")]
    near: set[int] = set()
    for seed in SEEDS:
        plan = neighbour(seed)
        whose = {number for number, one in enumerate(kept) if _is_near(plan, one)}
        assert whose, plan.lines()
        near |= whose
        assert all(life.removed_at is None or life.removed_at > life.made_at for life in plan.pods)
    assert near == set(range(len(kept)))


def test_a_seed_has_one_neighbour_and_another_seed_another():
    """A finding could not be played again, or one plan be played for hours."""
    assert neighbour(7) == neighbour(7)
    assert len({str(neighbour(seed).lines()) for seed in SEEDS}) == len(SEEDS)


def test_neighbours_are_played_from_the_command_line(capsys):
    """A failing one would be shown as another plan."""
    assert main(["--near", "--seeds", "2", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.endswith("seeds=2 violations=0\n")
    with pytest.raises(SystemExit):
        main(["--near", "--stormy"])
    assert "--near goes with no other way" in capsys.readouterr().err
