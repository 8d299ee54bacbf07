"""Pods that ask for linked GPUs must get linked ones, and single pods must not take them apart."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts.ids import GpuUuid
from sluice_allocator.core.placement.search.topology import by_numa, closest, pair_score

Pairs = dict[tuple[int, int], int]


def gpu(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{number:02}")


def links_of(pairs: Pairs) -> dict[GpuUuid, dict[GpuUuid, int]]:
    """What GPUs report whose pairs have these scores, both ways."""
    links: dict[GpuUuid, dict[GpuUuid, int]] = {}
    for (one, other), score in pairs.items():
        links.setdefault(gpu(one), {})[gpu(other)] = score
        links.setdefault(gpu(other), {})[gpu(one)] = score
    return links


def two_groups(size: int) -> Pairs:
    """GPUs 0..size-1 and size..2*size-1: two NVLinks within a group, the CPU's bus across."""
    pairs = itertools.combinations(range(2 * size), 2)
    return {(one, other): 200 if one // size == other // size else 10 for one, other in pairs}


def test_four_gpus_come_from_one_group() -> None:
    """Across the groups every exchange of gradients would take twenty times as long."""
    everyone = [gpu(n) for n in range(8)]
    assert closest(links_of(two_groups(4)), everyone, 4) == tuple(everyone[:4])
    assert closest(links_of(two_groups(4)), everyone[1:], 4) == tuple(everyone[4:])


def test_the_best_linked_pair_is_found_among_unequal_ones() -> None:
    """NVLink counts differ between pairs: the largest score wins, not the first."""
    pairs = {(0, 1): 100, (0, 2): 200, (1, 3): 400, (2, 3): 100}
    assert closest(links_of(pairs), [gpu(n) for n in range(4)], 2) == (gpu(1), gpu(3))


def test_one_gpu_is_the_worst_linked() -> None:
    """A single pod on a linked GPU leaves its partner without one."""
    pairs = {(0, 1): 200, (2, 3): 200, (0, 4): 10}
    assert closest(links_of(pairs), [gpu(n) for n in range(5)], 1) == (gpu(4),)
    assert closest({}, [gpu(2), gpu(1)], 1) == (gpu(2),)


def test_a_link_that_one_end_denies_does_not_count() -> None:
    """HAMi treats an asymmetric pair as not linked: one of the two reports is wrong."""
    links = {gpu(0): {gpu(1): 400}, gpu(2): {gpu(3): 100}, gpu(3): {gpu(2): 100}}
    assert pair_score(links, gpu(0), gpu(1)) == 0
    assert closest(links, [gpu(n) for n in range(4)], 2) == (gpu(2), gpu(3))


def test_sixteen_gpus_are_searched_well_though_not_exactly() -> None:
    """Above ten candidates sets are grown: on a regular machine that must still be the best set."""
    everyone = [gpu(n) for n in range(16)]
    assert set(closest(links_of(two_groups(8)), everyone, 8)) in ({*everyone[:8]}, {*everyone[8:]})


@pytest.mark.parametrize("count", [-1, 3])
def test_more_than_there_are_is_an_error(count: int) -> None:
    """A set that is silently smaller than asked for would be granted."""
    with pytest.raises(ValueError, match="of 2 GPUs"):
        closest({}, [gpu(0), gpu(1)], count)
    assert closest({}, [gpu(0), gpu(1)], 0) == closest({}, [gpu(n) for n in range(12)], 0) == ()
    assert closest({}, [gpu(1), gpu(0)], 2) == (gpu(1), gpu(0))


def sum_of(links: dict[GpuUuid, dict[GpuUuid, int]], members: tuple[GpuUuid, ...]) -> int:
    pairs = itertools.combinations(members, 2)
    return sum(links.get(a, {}).get(b, 0) for a, b in pairs if links.get(a, {}).get(b) == links.get(b, {}).get(a))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(2, 13))
def test_no_set_is_better_and_no_exchange_helps(data: st.DataObject, size: int) -> None:
    """Up to ten candidates the very best; above, a set that no single exchange improves. The same every time."""
    count = data.draw(st.integers(2, size))
    pairs = {
        pair: data.draw(st.sampled_from([0, 10, 20, 60, 100, 400])) for pair in itertools.combinations(range(size), 2)
    }
    links, everyone = links_of(pairs), [gpu(n) for n in range(size)]
    chosen = closest(links, everyone, count)
    assert chosen == closest(links, everyone, count)
    assert len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    if size <= 10:
        assert sum_of(links, chosen) == max(sum_of(links, some) for some in itertools.combinations(everyone, count))
    for out, into in itertools.product(chosen, everyone):
        if into not in chosen:
            exchanged = (*(each for each in chosen if each != out), into)
            assert sum_of(links, exchanged) <= sum_of(links, chosen)


def test_gpus_are_grouped_by_numa_node() -> None:
    """A GPU that does not say its NUMA node cannot be promised to be near another."""
    numa = {gpu(0): 1, gpu(1): 0, gpu(2): None, gpu(3): 1}
    assert by_numa(numa, [gpu(3), gpu(2), gpu(1), gpu(0), gpu(9)]) == ((gpu(1),), (gpu(3), gpu(0)))
