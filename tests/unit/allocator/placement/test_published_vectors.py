"""Numbers that vendors and other systems publish, asked of the engine itself."""

from factories.scheduling.placement import Shop, claim, given, node

GPU = "GPU-node-a-0"


def test_a_3g_in_the_lower_half_costs_three_more_than_in_the_upper():
    """8 beside 3g at 0: the second 3g is there, and only giving back the first one leaves the lower one alone."""
    shop = Shop(node("node-a", 1))
    upper, lower = shop.take(claim(profile="3g.20gb")), shop.take(claim(profile="3g.20gb"))
    assert (given(shop.devices(upper)), given(shop.devices(lower))) == ([("3g.20gb", 4, 4)], [("3g.20gb", 0, 4)])
    assert upper is not None
    shop.give_back(upper)
    assert sum(shop.creatable(GPU).values()) == 8
