"""Whether pods could ever start together: users who read that they cannot should not wonder at a free fleet."""

import pytest
from factories.scheduling.allocator import claim, gpu_report, snapshot
from factories.scheduling.placement import Shop, node
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from sluice.contracts.messages import DeviceFilter, HostNeeds, InstanceReport, Taint, Toleration
from sluice_allocator.core.placement import PlaceRequest, TooFew, too_few_gpus

WHOLE = claim(profile="7g.40gb")
FIXED = (("3g.20gb", 0, 4), ("2g.10gb", 4, 2), ("1g.5gb", 6, 1))


def with_fixed(name: str):
    """A node with one GPU that its administrator partitioned."""
    there = tuple(
        InstanceReport(gi_id=start + 1, profile=profile, start=start, size=size, uuid=f"MIG-{start}")
        for profile, start, size in FIXED
    )
    return snapshot(name, (gpu_report(name, 0, fixed_layout=True, instances=there),))


def mixed() -> Shop:
    """Two A100 that can be cut, an A30, one A100 without MIG, and one with a fixed layout."""
    return Shop(node("a", 2), node("b", 1, model="a30-24gb"), node("c", 1, mig=False), with_fixed("d"))


def few(shop: Shop, *asked: tuple[PlaceRequest, int]) -> TooFew | None:
    return too_few_gpus(shop.cluster, asked)


@pytest.mark.parametrize(
    ("asked", "pods", "found"),
    [
        (WHOLE, 2, None),
        (WHOLE, 3, TooFew(3, 3, 2)),
        (claim(profile="3g.20gb"), 5, None),
        (claim(profile="3g.20gb"), 6, TooFew(6, 6, 5, "devices")),
        (claim(profile="3g.20gb", gpus=2), 3, TooFew(3, 6, 5, "devices")),
        (claim(profile="1g.5gb"), 15, None),
        (claim(profile="1g.5gb"), 16, TooFew(16, 16, 15, "devices")),
        (claim(profile="4g.24gb"), 2, TooFew(2, 2, 1)),
        (claim(profile="4g.24gb", only=DeviceFilter(models=("H100",))), 2, None),
        (claim(modes=("mps",), memory_mib=4000), 1000, None),
    ],
)
def test_only_gpus_that_could_serve_a_job_count(asked, pods, found):
    """Beside an A30 a job of three whole A100 on two would wait for ever, without a reason that says so."""
    assert few(mixed(), (PlaceRequest((asked,)), pods)) == found


def test_what_only_one_model_has_is_counted_apart_from_the_rest():
    """One job of pods for two models, of which one is too few: the others are not to blame."""
    shop = mixed()
    assert few(shop, (PlaceRequest((WHOLE,)), 2), (PlaceRequest((claim(profile="4g.24gb"),)), 1)) is None
    assert few(shop, (PlaceRequest((WHOLE,)), 2), (PlaceRequest((claim(profile="4g.24gb"),)), 3)) == TooFew(3, 3, 1)
    both = claim(profile="7g.40gb"), claim(profile="3g.20gb")
    assert few(shop, (PlaceRequest((both[0],)), 2), (PlaceRequest((both[1],)), 4)) == TooFew(6, 4, 3)


def test_nodes_that_a_job_may_not_be_on_do_not_count():
    """Half of a fleet that is kept for others by a taint does not make room for it."""
    shop = Shop(node("a", 1), node("b", 1))
    shop.host("b", taints=(Taint(key="team", value="other", effect="NoSchedule"),))
    assert few(shop, (PlaceRequest((WHOLE,)), 2)) == TooFew(2, 2, 1)
    assert few(shop, (PlaceRequest((WHOLE,), host=HostNeeds(tolerations=(Toleration(operator="Exists"),))), 2)) is None


def test_a_job_whose_pods_may_have_larger_ones_is_not_told_that_it_never_fits():
    """An A30 has four 1g.6gb; larger profiles of the A100 serve as well where a pod allows it."""
    shop = mixed()
    small = claim(profile="1g.6gb")
    assert few(shop, (PlaceRequest((small,)), 8)) == TooFew(8, 8, 4, "devices")
    assert few(shop, (PlaceRequest((small,), substitute=True), 8)) is None


ASKED = (
    WHOLE,
    claim(),
    claim(profile="3g.20gb"),
    claim(profile="2g.10gb", gpus=2),
    claim(profile="4g.24gb"),
    claim(profile="1g.6gb"),
    claim(memory_mib=9000),
)


@settings(max_examples=60, deadline=None)
@for_all(st.lists(st.tuples(st.sampled_from(ASKED), st.integers(1, 4), st.booleans()), min_size=1, max_size=3))
def test_what_was_once_placed_whole_is_never_said_to_be_too_much(together):
    """A user who learns that a job can never start takes it away."""
    shop = mixed()
    askings = [(PlaceRequest((asked,), substitute=larger), pods) for asked, pods, larger in together]
    placed = all(shop.take(*each.claims, substitute=each.substitute) for each, pods in askings for _ in range(pods))
    if placed:
        assert few(mixed(), *askings) is None
