"""Storms and coincidences move what goes wrong, and add nothing that a plan may not hold."""

from collections import Counter
from itertools import pairwise
from operator import attrgetter

import pytest
from simulation.plans.coincidences import with_coincidences
from simulation.plans.plan import draw_plan
from simulation.plans.storms import APART, WIDTH_S, with_storms
from simulation.plans.variants import Variant

SEEDS = range(60)


def test_a_storm_is_of_the_same_faults_and_pods():
    """An undecidable case would be called a violation."""
    for seed in SEEDS:
        plan, stormy = draw_plan(seed), with_storms(draw_plan(seed))
        what = attrgetter("kind", "target", "lasts_s", "number")
        assert Counter(map(what, plan.faults)) == Counter(map(what, stormy.faults))
        assert [life.pod for life in plan.pods] == [life.pod for life in stormy.pods]
        calm, moved = ([f for f in each.faults if f.kind == "node removed"] for each in (plan, stormy))
        assert calm == moved


def test_faults_meet_in_storms():
    """What shows only when two things go wrong within a second would not be found sooner."""

    def meeting(plans):
        pairs = [(a, b) for plan in plans for a, b in zip(plan.faults, plan.faults[1:], strict=False)]
        return sum(b.at - a.at < WIDTH_S / 4 for a, b in pairs) / len(pairs)

    calm, stormy = (meeting(Variant(stormy=is_stormy).plan(seed) for seed in SEEDS) for is_stormy in (False, True))
    assert stormy > 1.5 * calm


def test_coincidences_are_of_the_same_faults_and_pods():
    """An undecidable case would be called a violation."""
    for seed in SEEDS:
        plan, moved = draw_plan(seed), with_coincidences(draw_plan(seed))
        what = attrgetter("kind", "target", "number")
        assert Counter(map(what, plan.faults)) == Counter(map(what, moved.faults))
        assert [life.pod for life in plan.pods] == [life.pod for life in moved.pods]
        assert [f for f in plan.faults if f.kind in APART] == [f for f in moved.faults if f.kind in APART]
        assert max(f.at for f in moved.faults) <= max(plan.faults_until, *(f.at for f in plan.faults))


def test_faults_begin_and_end_where_others_do():
    """What shows only in the moment in which something else begins or ends would not be found sooner."""

    def meeting(plans):
        moments = [sorted(at for f in plan.faults for at in (f.at, f.at + f.lasts_s)) for plan in plans]
        gaps = [b - a for each in moments for a, b in pairwise(each)]
        return sum(gap < 0.1 for gap in gaps) / len(gaps)

    calm, moved = (meeting(Variant(coinciding=each).plan(seed) for seed in SEEDS) for each in (False, True))
    assert moved > 2 * calm


@pytest.mark.parametrize("move", [with_storms, with_coincidences])
def test_no_pod_ends_before_it_comes(move):
    """Such a pod would never be there, and nothing be tested with it."""
    for seed in SEEDS:
        plan = draw_plan(seed)
        for calm, life in zip(plan.pods, move(plan).pods, strict=True):
            if calm.removed_at is not None and calm.removed_at > calm.made_at:
                assert life.removed_at is not None
                assert life.removed_at > life.made_at


def test_small_worlds_are_small():
    """They would be played for nothing, twice as slowly as said."""
    for seed in SEEDS:
        assert len(Variant(small=True).plan(seed).nodes) <= 2
    small, drawn = (sum(len(Variant(small=each).plan(seed).pods) for seed in SEEDS) for each in (True, False))
    assert small < 0.6 * drawn
