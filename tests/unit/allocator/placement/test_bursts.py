"""Many requests at once: nothing is given twice, and nothing stays empty that could have been given."""

from collections import Counter

import pytest
from factories.scheduling.placement import Shop, claim, node, share
from judges.placements import NodeTruth, Truth

SHAPES = (
    *(claim(profile=name) for name in ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")),
    *(claim(memory_mib=8000, known_geometries=True, gpus=2), claim()),
    *(claim(modes=("mps",), memory_mib=4000), claim(modes=("fractional",), sm_partition=30)),
    share(120),
)


def truth_of(shop: Shop, nodes) -> Truth:
    truth = Truth({each.node: NodeTruth(each) for each in nodes})
    truth.bookings.update(shop.booked)
    return truth


def test_a_thousand_requests_at_once_on_200_nodes_of_8_over_commit_nothing():
    """Every mode and size in turn: each is placed, and not one slice, MiB or percent is given twice."""
    nodes = [node(f"node-{number:03}", 8) for number in range(200)]
    shop = Shop(*nodes)
    names = [shop.take(SHAPES[number % len(SHAPES)], namespace=f"team-{number % 7}") for number in range(1000)]
    assert None not in names
    used = {device.gpu for device in shop.all_devices()}
    touched = [each for each in nodes if any(gpu.uuid in used for gpu in each.gpus)]
    assert truth_of(shop, touched).violations() == []


@pytest.mark.parametrize("half", [share(50), claim(modes=("mps",), memory_mib=20480)])
@pytest.mark.parametrize("sizes", [(8,), (4, 4)])
def test_sixteen_halves_at_once_use_exactly_eight_gpus(half, sizes):
    """Never three halves on a card (KAI #2153: four on one, out of memory, others idle)."""
    shop = Shop(*(node(f"node-{number}", gpus, mig=False) for number, gpus in enumerate(sizes)))
    assert None not in [shop.take(half) for _ in range(16)]
    assert shop.take(half) is None
    assert set(Counter(device.gpu for device in shop.all_devices()).values()) == {2}


def test_a_burst_that_departs_leaves_no_trace():
    """After 300 pods came and went the fleet gives exactly what it gave at first."""
    shop = Shop(*(node(f"node-{number}", 4) for number in range(4)))
    first = shop.ask(claim(profile="3g.20gb"))
    names = [shop.take(SHAPES[number % len(SHAPES)]) for number in range(300)]
    for name in names:
        if name is not None:
            shop.give_back(name)
    assert shop.ask(claim(profile="3g.20gb")) == first
    assert sum(shop.take(claim()) is not None for _ in range(20)) == 16
