"""What the burst asks for fits what it offers, by the limits of the API: else it would measure pods that wait."""

from collections import Counter

import pytest
from perf.burst import objects

COUNTER_SETS_MAX = 8
"""Of one ResourceSlice (ResourceSliceMaxCounterSets)."""


def slices(kind: objects.Kind) -> list[dict]:
    return [each for each in objects.devices(["n"], kind) if each["kind"] == "ResourceSlice"]


@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_burst_has_as_many_pods_as_were_asked_for(count: int) -> None:
    """And the same ones in every variant of a round."""
    assert len(objects.shapes(count, seed=1)) == count
    assert objects.shapes(count, seed=1) == objects.shapes(count, seed=1)


def test_eight_nodes_have_a_static_device_for_each_of_300_pods() -> None:
    """Its own profile's: static devices do not change."""
    offered = Counter(
        each["attributes"]["profile"]["string"] for some in slices("static") for each in some["spec"]["devices"]
    )
    wanted = Counter(objects.shapes(300, seed=0))
    assert all(8 * offered[profile] >= count for profile, count in wanted.items())


def test_partitions_keep_to_the_limits_of_a_slice_and_of_their_gpu() -> None:
    """The API server refuses more, and the scheduler ignores a pool that lacks a slice."""
    counters, *others = (each["spec"] for each in slices("partitionable"))
    assert len(counters["sharedCounters"]) <= COUNTER_SETS_MAX
    assert all(len(each["devices"]) <= objects.PER_SLICE_MAX for each in others)
    assert {each["pool"]["resourceSliceCount"] for each in (counters, *others)} == {1 + len(others)}
    there = {each["name"]: each["counters"] for each in counters["sharedCounters"]}
    for device in (device for each in others for device in each["devices"]):
        (taken,) = device["consumesCounters"]
        assert taken["counters"].keys() <= there[taken["counterSet"]].keys()
