"""The examples by which this field explains itself come out as its users expect."""

from factories.scheduling.placement import Shop, claim, given, node


def test_two_gpus_of_8000_mib_leave_room_on_the_same_card():
    """`nvidia.com/gpu: 2` with `gpumem: 8000` takes two 2g.10gb of one GPU, and a 2g.10gb and a 1g.5gb still fit."""
    shop = Shop(node("node-a", 1))
    name = shop.take(claim(gpus=2, memory_mib=8000, known_geometries=True))
    assert [profile for profile, _, _ in given(shop.devices(name))] == ["2g.10gb", "2g.10gb"]
    third = shop.take(claim(profile="2g.10gb"))
    assert given(shop.devices(third))[0][0] == "2g.10gb"
    assert shop.take(claim(profile="1g.5gb")) is not None


def test_all_of_a_gpu_exclusively_is_its_largest_instance_and_leaves_nothing():
    """100 percent takes 7g.40gb; nothing is creatable beside it."""
    shop = Shop(node("node-a", 1))
    name = shop.take(claim(sm_percentage=100))
    assert given(shop.devices(name)) == [("7g.40gb", 0, 8)]
    assert sum(shop.creatable("GPU-node-a-0").values()) == 0
