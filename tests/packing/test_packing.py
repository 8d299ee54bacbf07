"""A small dose of the packing benchmark: every place legal, more accepted than by others, yardsticks that are right."""

import itertools
from collections import Counter

import pytest
from perf.packing.loss import run
from perf.packing.mixes import ALL_MIXES, COMPUTE_SLICES, MIXES, arrivals
from perf.packing.others import SPANS, FirstFit, Hami, Ideal, Templates
from perf.packing.ours import Core

GPUS = 16
PODS = 1_500
WARM_UP = 300


@pytest.mark.parametrize("mix", ALL_MIXES)
def test_no_place_is_illegal_under_churn(mix: str):
    """An illegal place is a slice that the driver refuses after the pod was promised it."""
    core = Core(GPUS, judged=True)
    taken = run(arrivals(mix, 1, count=PODS, gpus=GPUS), core, WARM_UP)
    assert core.problems == []
    assert taken.accepted.total() > 0


def test_more_of_the_same_pods_get_a_place_than_with_others():
    """People would rightly stay with first fit, HAMi or fixed templates if they took as much."""
    accepted = {}
    for packer in (Core, FirstFit, Hami, Templates):
        pods = [list(arrivals(mix, 1, count=PODS, gpus=GPUS)) for mix in MIXES]
        accepted[packer] = sum(run(each, packer(GPUS), WARM_UP).by_slices() for each in pods) / len(MIXES)
    assert accepted[Core] > accepted[FirstFit]
    assert accepted[Core] > accepted[Hami]
    assert accepted[Core] > accepted[Templates] + 0.05


def test_hami_packs_by_its_own_rule():
    """1g and 3g from the top, others from the bottom, the next larger profile where no smaller one is left."""
    packer = Hami(1)
    for number, profile in enumerate(("1g.5gb", "2g.10gb", "1g.10gb", "1g.5gb")):
        assert packer.place(number, profile)
    assert packer._taken == [0b0110_1111]
    assert packer.place(4, "1g.5gb")
    assert not packer.place(5, "1g.5gb")
    for number in range(5):
        packer.release(number)
    assert packer._taken == [0]


def test_the_ideal_takes_exactly_what_some_packing_holds():
    """A yardstick that is too short would flatter us, one that is too long would never be met."""
    layouts = {tuple(sorted(layout)) for layout in _layouts(0, ())}
    pairs = {tuple(sorted(a + b)) for a, b in itertools.combinations_with_replacement(layouts, 2)}
    for gpus, held in ((1, layouts), (2, pairs)):
        most = max(len(layout) for layout in held)
        for count in range(most + 1):
            for asked in itertools.combinations_with_replacement(sorted(COMPUTE_SLICES), count):
                assert Ideal(gpus, Counter(asked)).fits() == (asked in held), asked


def _layouts(taken: int, inside: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = [inside]
    for profile, (size, starts) in SPANS.items():
        if inside and profile < inside[-1]:
            continue  # the order in which they are made does not matter
        for start in starts:
            span = ((1 << size) - 1) << start
            if not span & taken:
                found += _layouts(taken | span, (*inside, profile))
    return found
