"""Lanes: which shares take turns, judged by trying every way of putting shares into lanes."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import AllocationId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement.nodes.shared_device import DeviceKey, TimeSlots

Rectangle = tuple[int, int]
"""Width in percent, time in permille."""


def _key(number: int) -> DeviceKey:
    return AllocationId(f"a{number}"), 0


def _lanes(*shares: Rectangle) -> TimeSlots:
    lanes = TimeSlots()
    for number, (width, time) in enumerate(shares):
        lanes.add(_key(number), width, time)
    return lanes


def _ways(shares: list[Rectangle]) -> Iterator[list[list[Rectangle]]]:
    if not shares:
        yield []
        return
    first, rest = shares[0], shares[1:]
    for way in _ways(rest):
        yield [[first], *way]
        for at in range(len(way)):
            yield [*way[:at], [first, *way[at]], *way[at + 1 :]]


def _narrowest(shares: list[Rectangle]) -> int:
    """The least width that any lanes need for these shares."""
    return min(
        sum(max(width for width, _ in lane) for lane in way)
        for way in _ways(shares)
        if all(sum(time for _, time in lane) <= 1000 for lane in way)
    )


_JOINED = [(60, 1000), (30, 200)]
_LONG = [(60, 700), (40, 700)]


@pytest.mark.parametrize(
    ("booked", "more", "short"),
    [
        # Without turns it would be refused although the first leaves the SMs idle half of the time.
        ([(60, 500)], (60, 500), None),
        # A wider share widens its lane only as far as there are SMs.
        (_JOINED, (40, 500), None),
        (_JOINED, (41, 500), WaitReason.GPU_TIME_USED_UP),
        (_JOINED, (71, 500), WaitReason.GPU_INSUFFICIENT_SMS),
        # A user who reads "SMs" where time is short makes the share narrower in vain.
        (_LONG, (50, 300), None),
        (_LONG, (50, 400), WaitReason.GPU_TIME_USED_UP),
        (_LONG, (61, 300), WaitReason.GPU_INSUFFICIENT_SMS),
        # A narrow share in a wide lane would eat the time that the next wide share needs.
        ([(80, 500), (20, 500), (15, 500)], (80, 500), None),
    ],
)
def test_one_more_share_takes_turns_or_what_is_short_is_named(booked, more, short) -> None:
    """Two tenants would be promised more SMs at one moment than the GPU has, or one would wait beside idle SMs."""
    lanes = _lanes(*booked)
    assert lanes.why_not(*more) is short
    if short is None:
        lanes.add(_key(9), *more)
        assert lanes.width_percent <= 100


def test_no_tenant_joins_while_a_promised_share_and_the_one_before_it_are_both_booked() -> None:
    """The lane that is one too many now is where the promised share will be: its time would be given away first."""
    lanes = _lanes((60, 200), (50, 250), (20, 500), (100, 500))
    assert lanes.width_percent > 100
    assert lanes.why_not(20, 100) is WaitReason.GPU_TIME_USED_UP
    assert lanes.widest_percent() == 0
    lanes.remove(_key(2))
    lanes.add(_key(4), 20, 50)
    assert lanes.width_percent == 100


def test_what_is_not_there_may_be_removed() -> None:
    lanes = _lanes((10, 500))
    lanes.remove(_key(7))
    assert lanes.width_percent == 10


_SHARES = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 1000)), max_size=7)


@settings(max_examples=150, deadline=None)
@given(_SHARES, st.lists(st.integers(0, 6), max_size=4))
def test_an_admitted_pod_can_be_served_at_once(shares: list[Rectangle], leaving: list[int]) -> None:
    """Tenants would be promised SMs and time that no order of turns can give."""
    lanes = TimeSlots()
    live: dict[int, Rectangle] = {}
    for number, (width, time) in enumerate(shares):
        short = lanes.why_not(width, time)
        if short is None:
            assert width <= lanes.widest_percent()
            lanes.add(_key(number), width, time)
            live[number] = (width, time)
        else:
            assert width > 100 - lanes.width_percent, "it fits beside all others"
        if number in leaving and live:
            gone = min(live)
            lanes.remove(_key(gone))
            del live[gone]
        assert (_narrowest(list(live.values())) if live else 0) <= lanes.width_percent <= 100


@settings(max_examples=100, deadline=None)
@given(_SHARES)
def test_any_facts_are_counted_with_at_least_the_width_they_need(shares: list[Rectangle]) -> None:
    """Adopted shares that exceed the GPU would be hidden, and more booked on top."""
    lanes = _lanes(*shares)
    assert lanes.width_percent >= (_narrowest(shares) if shares else 0)
    assert lanes.width_percent <= sum(width for width, _ in shares)
    for number in range(len(shares)):
        lanes.remove(_key(number))
    assert lanes.width_percent == 0
