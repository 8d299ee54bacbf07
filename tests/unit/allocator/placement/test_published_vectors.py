"""Numbers that vendors and other systems publish, asked of the engine itself."""

import pytest
from factories.scheduling.placement import Shop, claim, given, node

GPU = "GPU-node-a-0"


def filled(*profiles: str) -> Shop:
    """One A100-40GB with these instances, made in this order at the highest possible start that is asked for."""
    shop = Shop(node("node-a", 1))
    for profile in profiles:
        assert shop.take(claim(profile=profile)) is not None
    return shop


@pytest.mark.parametrize(
    ("profiles", "creatable_total"), [((), 19), (("7g.40gb",), 0), (("3g.20gb",), 11), (("1g.5gb",), 15)]
)
def test_creatable_totals_are_those_that_the_driver_lists(profiles, creatable_total):
    """A100-40GB: 19 when empty, 0 beside 7g, 11 beside 3g at 4, 15 beside 1g at 6 (nvidia-smi -lgip)."""
    shop = filled(*profiles)
    assert sum(shop.creatable(GPU).values()) == creatable_total


def test_a_3g_in_the_lower_half_costs_three_more_than_in_the_upper():
    """8 beside 3g at 0: the second 3g is there, and only giving back the first one leaves the lower one alone."""
    shop = Shop(node("node-a", 1))
    upper, lower = shop.take(claim(profile="3g.20gb")), shop.take(claim(profile="3g.20gb"))
    assert (given(shop.devices(upper)), given(shop.devices(lower))) == ([("3g.20gb", 4, 4)], [("3g.20gb", 0, 4)])
    assert upper is not None
    shop.give_back(upper)
    assert sum(shop.creatable(GPU).values()) == 8
