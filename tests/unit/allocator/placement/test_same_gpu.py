"""Devices that are to be on one GPU, one NUMA node or one node."""

from itertools import product

import pytest
from factories.scheduling.placement import Shop, claim, node
from msgspec.structs import replace

from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import RefusalReason, WaitReason
from sluice.mig.catalog import find_model
from sluice.mig.transition_table import table_of
from sluice_allocator.core.placement import NoPlace, Place, PlacementConfig, PlaceRequest, refuse
from sluice_allocator.core.placement.search import context as module
from sluice_allocator.core.placement.search import find
from sluice_allocator.core.placement.search.context import together_of

PAIR = (("a", "b"),)


def instances(**profiles: str) -> tuple[Claim, ...]:
    return tuple(claim(container=name, profile=profile) for name, profile in profiles.items())


def gpus_of(place: Place | NoPlace) -> dict[str, set[str]]:
    assert isinstance(place, Place), place
    return {each.container: {d.gpu for d in place.devices if d.container == each.container} for each in place.devices}


def test_two_instances_that_must_share_a_gpu_are_on_the_one_with_room_for_both():
    """Each alone fits best where the other has no room."""
    shop = Shop(node("node-a", 2))
    shop.take_on("GPU-node-a-0", claim(profile="4g.20gb"))
    apart = gpus_of(shop.ask(*instances(a="3g.20gb", b="2g.10gb")))
    together = gpus_of(shop.ask(*instances(a="3g.20gb", b="2g.10gb"), same_gpu=PAIR))
    assert apart["a"] != apart["b"]
    assert together == {"a": {"GPU-node-a-1"}, "b": {"GPU-node-a-1"}}


def test_groups_with_a_container_in_common_are_one():
    """Each of two constraints that name one request holds."""
    claims = instances(a="1g.5gb", b="1g.5gb", c="1g.5gb", d="1g.5gb")
    asking = PlaceRequest(claims, same_gpu=(("a", "b"), ("d",), ("c", "b"), ("b", "nothing")))
    assert together_of(asking) == {0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2)}


def test_shares_that_must_be_on_one_gpu_are_found_on_the_last_of_many_nodes():
    """Nodes that hold one of the shares alone are many more than are tried in vain."""
    shop = Shop(*(node(f"node-{n:02}", 1, mig=False, modes=("mps",)) for n in range(50)))
    for n in range(49):
        shop.take_on(f"GPU-node-{n:02}-0", claim(modes=("mps",), memory_mib=10000, uid=0))
    pair = [claim(container=name, modes=("mps",), memory_mib=20000, uid=0) for name in "ab"]
    assert gpus_of(shop.ask(*pair, same_gpu=PAIR)) == {name: {"GPU-node-49-0"} for name in "ab"}


def test_who_waits_for_room_on_one_gpu_is_told_so():
    """Both would fit, and nothing else says what is missing."""
    shop = Shop(node("node-a", 2))
    for index in range(2):
        shop.take_on(f"GPU-node-a-{index}", claim(profile="4g.20gb"))
    place = shop.ask(*instances(a="2g.10gb", b="2g.10gb"), same_gpu=PAIR)
    assert place.message == "no GPU has room for all of a, b"
    assert [(each.reason, each.count, each.of) for each in place.reasons] == [(WaitReason.ONE_GPU_NOT_FIT, 1, "nodes")]


def test_what_no_gpu_could_ever_hold_is_told():
    """An empty GPU is too small: waiting does not help."""
    place = Shop(node("node-a", 4)).ask(*instances(a="4g.20gb", b="4g.20gb"), same_gpu=PAIR)
    assert place.message == "no GPU here could hold all of a, b, even an empty one"
    assert [each.reason for each in place.reasons[:2]] == [WaitReason.NO_NODE_CAN_FIT, WaitReason.ONE_GPU_NOT_FIT]


@pytest.mark.parametrize(
    "wrong", [{"modes": ("mps",), "gpus": 2, "memory_mib": 100}, {"modes": ("fractional",), "shares_percent": 150}]
)
def test_shares_over_several_gpus_that_must_be_on_one_are_refused(wrong):
    asking = PlaceRequest((Claim(container="a", **wrong), claim(container="b")), same_gpu=PAIR)
    refusal = refuse(PlacementConfig(), asking, max_gpus_per_node=16)
    assert (refusal.reason, refusal.field, refusal.value) == (RefusalReason.CONTRADICTION, "matchAttribute", "a, b")


@pytest.mark.parametrize("size", [20, 200])
def test_a_full_fleet_costs_no_more_than_a_small_one(monkeypatch, size):
    """Which GPUs hold a group is counted as nodes change: a decision tries the nodes that do, and no others."""
    shop = Shop(*(node(f"node-{n:03}", 2) for n in range(size)))
    for n in range(size - 1):
        for index in range(2):
            shop.take_on(f"GPU-node-{n:03}-{index}", claim(profile="4g.20gb"))
    asking = instances(a="2g.10gb", b="2g.10gb")
    shop.ask(*asking, same_gpu=PAIR)  # counted from the first on
    tried, fill = [], find.fit_on_node
    monkeypatch.setattr(find, "fit_on_node", lambda look, where: tried.append(where.name) or fill(look, where))
    assert isinstance(shop.ask(*asking, same_gpu=PAIR), Place)
    assert len(tried) == 1


def test_whether_instances_fit_beside_each_other_is_found_for_every_set():
    """Against all ways of placing them, one by one, in any order."""
    table = table_of(find_model("a100-40gb"))
    names = ("1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb")

    def fits(state, left):
        ways = ((choice.state_after, left[:n] + left[n + 1 :]) for n, name in enumerate(left) for choice in
                table.choices(state, name))  # fmt: skip
        return not left or any(fits(*way) for way in ways)

    for state in (table.empty, table.choices(table.empty, "1g.5gb")[0].state_after):
        for wanted in product(names, repeat=3):
            assert module._fit(table, state, tuple(sorted(wanted))) == fits(state, wanted), wanted


def test_a_gpu_that_another_container_names_is_left_to_it():
    """Two equal GPUs are not as good as each other when the second container may have only the first of them."""
    shop = Shop(node("node-a", 2))
    named = DeviceFilter(uuids=("GPU-node-a-0",))
    place = shop.ask(claim(container="any", profile="7g.40gb"), claim(container="named", profile="7g.40gb", only=named))
    assert gpus_of(place) == {"any": {"GPU-node-a-1"}, "named": {"GPU-node-a-0"}}


def test_a_gpu_on_the_numa_node_that_another_container_needs_is_left_to_it():
    """A container that may be anywhere does not take what one that must stay on a NUMA node cannot do without."""
    empty = node("node-a", 3)
    gpus = tuple(replace(report, numa_node=numa) for report, numa in zip(empty.gpus, (0, 1, 1), strict=True))
    shop = Shop(replace(empty, gpus=gpus))
    bound = claim(container="bound", profile="7g.40gb", gpus=2, numa_bind=True)
    place = shop.ask(claim(container="any", profile="7g.40gb"), bound)
    assert gpus_of(place)["bound"] == {"GPU-node-a-1", "GPU-node-a-2"}
