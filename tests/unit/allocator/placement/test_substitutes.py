"""A larger profile where the asked one has no place: never less of anything, least waste first, and only then."""

import math

import pytest
from factories.scheduling.placement import Shop, claim, given, node
from hypothesis import given as over
from hypothesis import settings, strategies

from sluice.contracts.reasons import WaitReason
from sluice.mig.catalog import catalog, find_model
from sluice.mig.model import GpuModel, Profile
from sluice_allocator.core.placement import NoPlace, PlacementConfig
from sluice_allocator.core.placement.nodes.device_spec import larger_for, shape_for
from sluice_allocator.core.placement.spec.config import AllowedProfiles
from sluice_allocator.core.placement.spec.larger_profiles import TRIED_MAX, larger_profiles, step_combinations

ANY = PlacementConfig()
A100 = "a100-40gb"
WITH_MIG = [model for model in catalog() if model.profiles]


def only(*profiles: str) -> PlacementConfig:
    """An operator lets only these profiles be made on an A100-40GB."""
    return PlacementConfig(allowed_profiles=(AllowedProfiles(("A100-SXM4-40GB",), profiles),))


def larger(key: str, profile: str, rules: PlacementConfig = ANY) -> list[str]:
    """What may serve instead of a profile, in the order in which it is tried."""
    return [each.name for each in larger_for(find_model(key), claim(profile=profile), rules)]


@pytest.mark.parametrize(
    ("key", "profile", "rules", "found"),
    [
        # mig-adapter §3.1: it compares compute first and gives a 2g.10gb for a 1g.20gb, which has more memory.
        (A100, "3g.20gb", ANY, ["4g.20gb", "7g.40gb"]),
        ("a100-80gb", "1g.20gb", ANY, ["2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        # mig-adapter §3.2.1's family: a 3g.20gb has the memory of a 4g.20gb and fewer SMs.
        (A100, "4g.20gb", ANY, ["7g.40gb"]),
        # mig-adapter §3.1: it reads a 1g.5gb+me as a 1g.5gb. A pod that asks for the media engines needs them.
        (A100, "1g.5gb+me", ANY, ["7g.40gb"]),
        # A 7g for a 1g would cost six others theirs, where a 2g would have done.
        (A100, "1g.10gb", ANY, ["2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
        # A profile that the operator forbids is not made as a substitute either.
        (A100, "1g.5gb", only("2g.10gb", "7g.40gb"), ["2g.10gb", "7g.40gb"]),
    ],
)
def test_a_substitute_has_no_less_and_wastes_least(key, profile, rules, found):
    """A pod would have less than it asked for, or others would lose more than it needs."""
    assert larger(key, profile, rules) == found


def test_a_name_that_a_model_does_not_know_is_as_large_as_anywhere():
    """On an A30 there is no 1g.5gb; its 1g.6gb has at least as much of everything."""
    assert larger(A100, "1g.5gb")[0] == "1g.5gb+me"
    assert larger("a30", "1g.5gb")[0] == "1g.6gb"
    assert "1g.6gb" not in larger("a30", "1g.10gb")


def test_shares_have_no_substitute():
    """A share is not of a profile: a larger one would take memory from other tenants."""
    rules = only("7g.40gb")
    shop = Shop(node("node-a", 1), rules=rules)
    shop.take(claim(profile="7g.40gb"))
    assert isinstance(shop.ask(claim(modes=("mps",), memory_mib=30_000), substitute=True), NoPlace)
    assert larger_for(find_model(A100), claim(modes=("exclusive", "mps"), memory_mib=900), rules) == ()


@settings(deadline=None)
@over(strategies.sampled_from(WITH_MIG), strategies.data())
def test_a_substitute_has_at_least_as_much_of_everything(where: GpuModel, data: strategies.DataObject):
    """Whatever is asked for, by name or by size, on whatever model: a pod that was promised so much has so much."""
    names = sorted({profile.name for each in WITH_MIG for profile in each.profiles})
    asked = data.draw(
        strategies.one_of(
            strategies.sampled_from(names).map(lambda name: claim(profile=name)),
            strategies.integers(1, 90_000).map(lambda mib: claim(memory_mib=mib)),
            strategies.integers(1, 150).map(lambda sms: claim(sm_count=sms)),
            strategies.integers(1, 100).map(lambda percent: claim(sm_percentage=percent)),
        )
    )
    exact = shape_for(where, asked, ANY, mig=True)
    found = larger_for(where, asked, ANY)
    assert exact not in found
    if asked.profile is not None:
        meant = [profile for each in WITH_MIG if (profile := each.profile(asked.profile)) is not None]
        mine = where.profile(asked.profile)
        meant = [mine] if mine is not None else meant
        assert all(_covers(profile, least) for profile in found for least in meant)
        mine_fits = [each for each in where.profiles if all(_covers(each, least) for least in meant)]
        assert {each.name for each in mine_fits} - {asked.profile} == {each.name for each in found}
    for profile in found:
        assert profile.memory_mib >= (asked.memory_mib or 0)
        assert profile.multiprocessors >= (asked.sm_count or 0)
        assert profile.multiprocessors * 100 >= (asked.sm_percentage or 0) * where.largest.multiprocessors
    sizes = [max(placement.size for placement in profile.placements) for profile in found]
    assert sizes == sorted(sizes)


def _covers(profile: Profile, least: Profile) -> bool:
    one = (profile.memory_mib, profile.multiprocessors, *profile.engines)
    other = (least.memory_mib, least.multiprocessors, *least.engines)
    return all(mine >= its for mine, its in zip(one, other, strict=True))


def test_geometries_of_hami_hold_for_substitutes():
    """HAMi's keys choose among its geometries only, which know no 4g on an A100."""
    asked, a100 = claim(memory_mib=8_000, known_geometries=True), find_model(A100)
    found = larger_profiles(a100, asked, a100.profile("2g.10gb"), ANY)
    assert found
    assert {each.name for each in found} <= set(ANY.geometry_of(a100))


def test_a_larger_profile_serves_where_the_asked_one_has_no_place():
    """mig-adapter's size-up: instead of waiting, the pod runs on the next larger one; what it asked for is known."""
    shop = Shop(node("node-a", 1, model="a30"), node("node-b", 1))
    shop.take_on("GPU-node-b-0", claim(profile="7g.40gb"))
    place = shop.ask(claim(profile="1g.5gb"), substitute=True)
    assert (place.node, given(place.devices)[0][0], place.instead_of) == ("node-a", "1g.6gb", "1g.5gb")


def test_the_next_larger_one_is_taken_before_larger_ones():
    """Least waste, in the search too: 2g before 3g while there is a place for a 2g."""
    shop = Shop(node("node-a", 1), rules=only("2g.10gb", "3g.20gb", "7g.40gb"))
    names = []
    while (name := shop.take(claim(profile="1g.5gb"), substitute=True)) is not None:
        names.append(shop.devices(name)[0].profile)
    assert names == ["2g.10gb", "2g.10gb", "2g.10gb"]


def test_several_devices_are_served_on_one_node_with_one_step():
    """All devices of a claim are of the size that was found for it; the other claim keeps what it asked for."""
    shop = Shop(node("node-a", 2), rules=only("2g.10gb", "3g.20gb"))
    left, right = claim(container="left", profile="1g.5gb", gpus=3), claim(container="right", profile="3g.20gb")
    place = shop.ask(left, right, substitute=True)
    found = [(device.container, device.profile) for device in place.devices]
    assert found == [("left", "2g.10gb")] * 3 + [("right", "3g.20gb")]
    assert place.instead_of == "1g.5gb"


def test_what_a_substitute_could_serve_is_not_said_to_fit_nowhere():
    """Its owner would change what a larger profile serves as soon as one is free."""
    rules = PlacementConfig(
        allowed_profiles=tuple(AllowedProfiles((each.product_names[0],), (each.largest.name,)) for each in WITH_MIG)
    )
    shop = Shop(node("node-a", 1), rules=rules)
    asked = claim(profile="1g.5gb")
    never, taken = shop.ask(asked), shop.take(asked, substitute=True)
    assert never.message == "the operator of this fleet allows no 1g.5gb on A100-40GB. Closest: 7g.40gb (A100-40GB)"
    assert never.reasons[0].reason is WaitReason.NO_NODE_CAN_FIT
    assert taken is not None
    waits = shop.ask(asked, substitute=True)
    assert WaitReason.NO_NODE_CAN_FIT not in [each.reason for each in waits.reasons]


@pytest.mark.parametrize("most", [(), (0,), (6,), (2, 0, 3), (6, 6), (6, 6, 6, 6, 6, 6)])
def test_the_ways_that_are_tried_are_bounded_and_differ(most: tuple[int, ...]):
    """A pod of many containers costs no decision per combination; one of two gets all that there are."""
    every = [range(has + 1) for has in most]
    found = list(step_combinations(every))
    assert len(found) == min(TRIED_MAX, math.prod(has + 1 for has in most) - 1)
    assert len(set(found)) == len(found)
    assert all(0 <= step <= has for way in found for step, has in zip(way, most, strict=True))
    assert all(any(way) for way in found)
    assert found == sorted(found, key=lambda way: (sum(map(bool, way)) > 1, sum(way)))


def test_only_steps_that_serve_a_claim_are_combined():
    """What no GPU can give is not tried with everything else once more."""
    assert list(step_combinations([[0, 3], [1, 4]])) == [(0, 1), (0, 4), (3, 1), (3, 4)]
    assert list(step_combinations([[0, 1], []])) == []
