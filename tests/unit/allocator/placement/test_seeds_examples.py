"""The examples by which this field explains itself come out as its users expect."""

from factories.scheduling.placement import Shop, claim, given, node, percents, share

from sluice_allocator.core.placement import NoPlace


def test_two_gpus_of_8000_mib_leave_room_on_the_same_card():
    """`nvidia.com/gpu: 2` with `gpumem: 8000` takes two 2g.10gb of one GPU, and a 2g.10gb and a 1g.5gb still fit."""
    shop = Shop(node("node-a", 1))
    name = shop.take(claim(gpus=2, memory_mib=8000, known_geometries=True))
    assert [profile for profile, _, _ in given(shop.devices(name))] == ["2g.10gb", "2g.10gb"]
    third = shop.take(claim(profile="2g.10gb"))
    assert given(shop.devices(third))[0][0] == "2g.10gb"
    assert shop.take(claim(profile="1g.5gb")) is not None


def test_two_gpus_of_8000_mib_stay_on_one_card_when_there_are_several():
    """The second instance does not open a second GPU."""
    shop = Shop(node("node-a", 4), node("node-b", 4))
    name = shop.take(claim(gpus=2, memory_mib=8000, known_geometries=True))
    assert len({device.gpu for device in shop.devices(name)}) == 1


def test_a_fifth_then_one_and_a_fifth_of_two_gpus_end_at_60_and_80_percent():
    """0.2 on one, then 1.2 split evenly as 0.6 and 0.6: no pod gets a whole GPU plus a crumb."""
    shop = Shop(node("node-a", 2, mig=False))
    first = shop.take(share(20))
    second = shop.take(share(120))
    assert percents(shop.devices(first)) == [20]
    assert percents(shop.devices(second)) == [60, 60]
    totals: dict[str, int] = {}
    for device in shop.all_devices():
        assert device.share is not None
        totals[device.gpu] = totals.get(device.gpu, 0) + device.share.sm_partition
    assert sorted(totals.values()) == [60, 80]


def test_a_share_of_two_and_three_tenths_of_eight_gpus_loses_nothing():
    """2.3 is exactly 230 hundredths, on as few GPUs as can hold it evenly."""
    shop = Shop(node("node-a", 8, mig=False))
    devices = shop.devices(shop.take(share(230)))
    assert sum(percents(devices)) == 230
    assert sorted(percents(devices)) == [76, 77, 77]
    assert len({device.gpu for device in devices}) == 3


def test_all_of_a_gpu_exclusively_is_its_largest_instance_and_leaves_nothing():
    """100 percent takes 7g.40gb; nothing is creatable beside it."""
    shop = Shop(node("node-a", 1))
    name = shop.take(claim(sm_percentage=100))
    assert given(shop.devices(name)) == [("7g.40gb", 0, 8)]
    assert sum(shop.creatable("GPU-node-a-0").values()) == 0


def test_an_empty_card_has_19_creatable_instances_and_again_when_all_is_given_back():
    """7+1+4+3+2+1+1, a sum of alternatives; giving back brings every one of them back."""
    shop = Shop(node("node-a", 1))
    before = shop.creatable("GPU-node-a-0")
    names = [shop.take(claim(profile=profile)) for profile in ("3g.20gb", "2g.10gb", "1g.5gb")]
    for name in names:
        assert name is not None
        shop.give_back(name)
    assert sum(before.values()) == 19
    assert shop.creatable("GPU-node-a-0") == before


def test_what_does_not_fit_is_said_and_books_nothing():
    """One hundredth more than there is: no place, and all of it is still there."""
    shop = Shop(node("node-a", 2, mig=False))
    assert isinstance(shop.ask(share(201)), NoPlace)
    assert sum(percents(shop.devices(shop.take(share(200))))) == 200
