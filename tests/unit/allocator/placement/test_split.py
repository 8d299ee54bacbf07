"""Splitting an amount of GPU: the published answers of another system, and what must hold for any numbers."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_allocator.core.placement.search.split import split

_IDLE_8 = [100] * 8


@pytest.mark.parametrize(
    ("free", "want", "quantum", "parts"),
    [
        # The same as lablup/backend.ai's fractional map gives (tests/unit/agent/test_alloc_map.py and issue 85 there).
        ([30, 20, 10], 10, 1, (0, 0, 10)),
        ([30, 20, 10], 15, 1, (0, 15, 0)),
        ([30, 20, 10], 20, 1, (0, 20, 0)),
        ([30, 20, 10], 30, 1, (30, 0, 0)),
        ([30, 20, 10], 40, 1, (20, 20, 0)),
        ([30, 20, 10], 50, 1, (30, 20, 0)),
        ([30, 20, 10], 60, 1, (30, 20, 10)),
        ([30, 20, 10], 70, 1, None),
        ([30, 30], 40, 1, (20, 20)),
        ([30, 30], 50, 1, (25, 25)),
        ([30, 30], 60, 1, (30, 30)),
        ([30, 30, 90], 100, 1, (30, 30, 40)),
        ([80, 75, 70, 30], 231, 1, (67, 67, 67, 30)),
        ([80, 75, 70, 30], 200, 1, (67, 67, 66, 0)),
        ([200, 300, 300, 500], 600, 1, (0, 300, 300, 0)),
        ([50] * 4, 150, 10, (50, 50, 50, 0)),
        ([20] * 4, 140, 10, None),
        ([30] * 8, 180, 10, (30, 30, 30, 30, 30, 30, 0, 0)),
        ([100, 100], 24, 25, None),
        # There 1.75 and 1.9 both become 0.75 + 0.75: what does not divide is lost. Here nothing is.
        ([100, 100], 175, 25, (100, 75)),
        ([100, 100], 190, 25, None),
        # There 5 x 0.40 for 2.3 in tenths, 0.3 less than asked, and 5 x 0.46 in hundredths. Here exact, over 3 GPUs.
        (_IDLE_8, 230, 10, (80, 80, 70, 0, 0, 0, 0, 0)),
        (_IDLE_8, 230, 1, (77, 77, 76, 0, 0, 0, 0, 0)),
        # There 4 x 0.55 and 4 x 0.2. Here parts that differ by one quantum are as even as it gets: fewer GPUs.
        ([100] * 4, 220, 1, (74, 73, 73, 0)),
        ([30] * 8, 80, 10, (30, 30, 20, 0, 0, 0, 0, 0)),
        # There 4 x 2.75 on the third to sixth of the larger ones. Here 3 devices, the tightest that hold it.
        ([100, 150, 200, 300, 300, 400, 450, 500, 500], 1100, 1, (0, 0, 0, 0, 0, 366, 367, 367, 0)),
    ],
)
def test_published_vectors(free: list[int], want: int, quantum: int, parts: tuple[int, ...] | None) -> None:
    """Users who come from there would get other shares than they know, or lose a part silently."""
    assert split(free, want, quantum) == parts


@pytest.mark.parametrize(("want", "quantum"), [(0, 1), (-10, 1), (10, 0), (10, -1), (15, 10)])
def test_amounts_that_are_none_have_no_place(want: int, quantum: int) -> None:
    """A request for nothing, or for a part of a quantum, would be bound with something else than it asked for."""
    assert split([100, 100], want, quantum) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-20, 100), max_size=40), st.integers(1, 2500), st.sampled_from([1, 5, 10, 25]))
def test_nothing_is_lost_and_nothing_is_given_twice(free: list[int], want: int, quantum: int) -> None:
    """A pod would get less than it asked for, or a GPU would be given beyond what is free."""
    before = list(free)
    parts = split(free, want, quantum)
    assert free == before
    there = sum(max(0, each) // quantum * quantum for each in free)
    if parts is None:
        assert want % quantum or there < want
    else:
        assert sum(parts) == want
        assert all(0 <= part <= max(0, each) and part % quantum == 0 for part, each in zip(parts, free, strict=True))
    assert split(free, want, quantum) == parts


def _can_give_evenly(free: tuple[int, ...], want: int) -> bool:
    """Whether these devices can all give, with parts that differ by at most one."""
    low, more = divmod(want, len(free))
    return low > 0 and all(each >= low for each in free) and sum(each > low for each in free) >= more


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 40))
def test_as_even_as_possible_on_the_fewest_and_fullest_devices(free: list[int], want: int) -> None:
    """A split would be uneven, or break more or emptier GPUs than it must (every choice of devices is tried)."""
    parts = split(free, want)
    if parts is None:
        return
    used = [part for part in parts if part]
    for count in range(1, len(free) + 1):
        even = [chosen for chosen in combinations(free, count) if _can_give_evenly(chosen, want)]
        if even:
            assert len(used) == count
            assert max(used) - min(used) <= 1
            taken = sum(each for each, part in zip(free, parts, strict=True) if part)
            assert taken == min(sum(chosen) for chosen in even)
            return
    assert max(used) - min(used) == _least_difference(free, want)


def _least_difference(free: list[int], want: int) -> int:
    """The least difference between the parts of any split: how far apart the narrowest band of parts is that works."""
    for difference in range(max(free) + 1):
        for low in range(1, max(free) + 1):
            high = low + difference
            for count in range(1, len(free) + 1):
                for chosen in combinations(free, count):
                    if min(chosen) >= low and count * low <= want <= sum(min(each, high) for each in chosen):
                        return difference
    raise AssertionError("the devices have enough together")


def test_over_booked_devices_give_nothing() -> None:
    """A device with less than nothing free would lend to others what it does not have."""
    assert split([-50, 100, 0], 100) == (0, 100, 0)
    assert split([-50, 100, 0], 101) is None


def test_a_small_share_and_then_a_large_one_end_at_six_and_eight_tenths() -> None:
    """The best known example of an even split would come out uneven."""
    free = [100, 100]
    for want in (20, 120):
        parts = split(free, want, 10)
        assert parts is not None
        free = [left - part for left, part in zip(free, parts, strict=True)]
    assert sorted(100 - left for left in free) == [60, 80]
