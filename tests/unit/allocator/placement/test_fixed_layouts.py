"""GPUs whose layout an administrator fixed: only what is there is given, and users read what is missing."""

import msgspec
import pytest
from factories.scheduling.allocator import gpu_report, snapshot
from factories.scheduling.placement import ALL_MODES, Shop, claim, given, node, share

from sluice.contracts.messages import InstanceReport
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import NoPlace

LAYOUT = (("3g.20gb", 0, 4), ("2g.10gb", 4, 2), ("1g.5gb", 6, 1))
SEVENTHS = tuple(("1g.5gb", start, 1) for start in range(7))


def instances(*layout, **changes):
    return tuple(
        InstanceReport(
            **({"gi_id": number, "profile": name, "start": start, "size": size, "uuid": f"MIG-{start}"} | changes)
        )
        for number, (name, start, size) in enumerate(layout, start=1)
    )


def fixed(name, *layouts, **changes):
    reports = tuple(
        gpu_report(name, index, instances=instances(*layout), fixed_layout=True, **changes)
        for index, layout in enumerate(layouts)
    )
    return snapshot(name, reports, modes=ALL_MODES)


def seen(shop, snapshot_):
    shop.cluster.show(snapshot_)
    shop.reports |= {gpu.uuid: gpu for gpu in snapshot_.gpus}


def why(shop, *claims, **rest):
    found = shop.ask(*claims, **rest)
    return [(each.reason, each.count) for each in found.reasons]


def taken(shop, *claims):
    """What each of these pods gets, one after the other; None where it waits."""
    names = [shop.take(each) for each in claims]
    return [given(shop.devices(name)) if name is not None else None for name in names]


ONE, TWO, THREE = claim(profile="1g.5gb"), claim(profile="2g.10gb"), claim(profile="3g.20gb")
MPS = claim(modes=("mps",), memory_mib=3000, uid=0)


@pytest.mark.parametrize(
    ("layouts", "asked", "spans"),
    [
        # A pod would be promised a place where no instance may be made; or two pods the same one.
        ([LAYOUT], [TWO, TWO, THREE], [[("2g.10gb", 4, 2)], None, [("3g.20gb", 0, 4)]]),
        # A pod that asks for memory would wait for a profile that was not made, beside a free larger one.
        ([(("3g.20gb", 0, 4), ("3g.20gb", 4, 4))], [claim(memory_mib=8000)], [[("3g.20gb", 4, 4)]]),
        # A pod that asks for all of a GPU would get a part, or nothing where all of it is one instance.
        ([LAYOUT, (("7g.40gb", 0, 8),)], [claim(), claim()], [[("7g.40gb", 0, 8)], None]),
        # On such a GPU no pod could share.
        (
            [LAYOUT],
            [*[MPS] * 7, THREE, TWO],
            [*[[("3g.20gb", 0, 4)]] * 6, [("1g.5gb", 6, 1)], None, [("2g.10gb", 4, 2)]],
        ),
        # A driver's odd report would stop the allocator.
        ([(("9g.90gb", 0, 4), ("1g.5gb", 7, 1), *LAYOUT[2:])], [ONE, ONE], [[("1g.5gb", 6, 1)], None]),
    ],
)
def test_only_what_is_there_is_given(layouts, asked, spans):
    """A pod would be bound to an instance that is not there, or would wait beside one that is."""
    assert taken(Shop(fixed("n", *layouts)), *asked) == spans


def test_nothing_is_given_that_would_have_to_be_made():
    """Eight free slices without an instance on them may not be cut up."""
    shop = Shop(fixed("n", ()))
    assert why(shop, claim(profile="1g.5gb")) == [(WaitReason.NO_NODE_CAN_FIT, 1), (WaitReason.GPU_NOT_IN_LAYOUT, 1)]


@pytest.mark.parametrize("asks", [("2g.10gb", "1g.5gb"), ("1g.5gb", "2g.10gb")])
def test_containers_are_served_by_what_is_there_however_much_larger_each(asks):
    """A pod whose first container could have a 7g and whose second a 1g+me would wait for ever beside both."""
    shop = Shop(fixed("n", (("7g.40gb", 0, 8),), (("1g.10gb", 0, 2), ("1g.5gb+me", 2, 1))))
    shop.take_on("GPU-n-1", claim(profile="1g.10gb"))
    asked = [claim(container=name, profile=profile) for name, profile in zip(("left", "right"), asks, strict=True)]
    place = shop.ask(*asked, substitute=True)
    assert not isinstance(place, NoPlace)
    served = {"2g.10gb": ("7g.40gb", 0, 8), "1g.5gb": ("1g.5gb+me", 2, 1)}
    assert given(place.devices) == [served[profile] for profile in asks]
    assert place.instead_of == ", ".join(asks)


def test_devices_of_one_container_are_of_one_size():
    """A job that is spread over two GPUs would be as slow, or as full, as the smaller of two unequal devices."""
    shop = Shop(fixed("n", (("7g.40gb", 0, 8),), LAYOUT))
    shop.take_on("GPU-n-1", claim(profile="3g.20gb"))
    assert isinstance(shop.ask(claim(profile="2g.10gb", gpus=2), substitute=True), NoPlace)
    shop = Shop(fixed("n", (("7g.40gb", 0, 8),), (("7g.40gb", 0, 8),)))
    place = shop.ask(claim(profile="2g.10gb", gpus=2), substitute=True)
    assert not isinstance(place, NoPlace)
    assert given(place.devices) == [("7g.40gb", 0, 8)] * 2


@pytest.mark.parametrize(
    "said", [{"unusable": "it is used by python 7"}, {"unusable": "it has no compute instance", "uuid": ""}]
)
def test_what_its_agent_does_not_offer_is_not_granted(said):
    """Grants would fail one after the other on a device that is in use."""
    report = gpu_report("n", 0, fixed_layout=True, instances=instances(LAYOUT[2], **said))
    shop = Shop(snapshot("n", (report,), modes=ALL_MODES))
    assert why(shop, claim(profile="1g.5gb")) == [(WaitReason.GPU_INSTANCES_TAKEN, 1)]
    seen(shop, fixed("n", LAYOUT[2:]))
    assert shop.take(claim(profile="1g.5gb")) is not None


@pytest.mark.parametrize("first", ["fixed", "dynamic"])
def test_what_is_there_is_used_before_anything_is_cut_up(first):
    """Free slices, of which large instances could be made, would go to small pods beside idle small instances."""
    nodes = [fixed("a" if first == "fixed" else "z", SEVENTHS), node("m", 2)]
    shop = Shop(*nodes)
    shop.take_on("GPU-m-0", claim(profile="4g.20gb"))
    taken = [shop.devices(shop.take(claim(profile="1g.5gb")))[0].gpu for _ in range(7)]
    assert set(taken) == {nodes[0].gpus[0].uuid}
    assert shop.devices(shop.take(claim(profile="1g.5gb")))[0].gpu == "GPU-m-0"


def test_a_part_of_a_gpu_needs_an_instance_that_is_all_of_it():
    """A pod that asks for half a GPU would be given half of a seventh, or stop the allocator."""
    shop = Shop(fixed("n", LAYOUT))
    assert why(shop, share(50))[-1][0] is WaitReason.GPU_NOT_IN_LAYOUT
    seen(shop, fixed("n", (("7g.40gb", 0, 8),)))
    first, second = shop.take(share(50)), shop.take(share(50))
    assert given(shop.devices(first)) == given(shop.devices(second)) == [("7g.40gb", 0, 8)]
    assert shop.take(share(120)) is None


def test_what_is_booked_holds_its_slices_whatever_the_layout_is_now():
    """Two tenants would be given the same slices, because the layout was changed under the first."""
    shop = Shop(fixed("n", LAYOUT))
    name = shop.take(claim(profile="2g.10gb"))
    seen(shop, fixed("n", (("4g.20gb", 0, 4), ("1g.5gb", 4, 1), ("1g.5gb", 5, 1), ("1g.5gb", 6, 1))))
    assert given(shop.devices(shop.take(claim(profile="1g.5gb")))) == [("1g.5gb", 6, 1)]
    assert shop.take(claim(profile="1g.5gb")) is None
    shop.give_back(name)
    assert given(shop.devices(shop.take(claim(profile="1g.5gb")))) == [("1g.5gb", 5, 1)]


def test_no_tenant_joins_a_home_whose_instance_was_taken_away():
    shop = Shop(fixed("n", LAYOUT[2:]))
    mps = claim(modes=("mps",), memory_mib=1000, uid=0)
    assert shop.take(mps) is not None
    seen(shop, fixed("n", ()))
    assert shop.take(mps) is None
    seen(shop, fixed("n", LAYOUT[2:]))
    assert shop.take(mps) is not None


def test_a_gpu_that_is_given_back_is_cut_up_again():
    """A change of one setting would need a restart of everything."""
    shop = Shop(fixed("n", LAYOUT[2:]))
    assert shop.take(claim(profile="3g.20gb")) is None
    seen(shop, node("n", 1))
    assert shop.take(claim(profile="3g.20gb")) is not None
    seen(shop, fixed("n", (("3g.20gb", 0, 4), ("3g.20gb", 4, 4))))
    assert shop.take(claim(profile="3g.20gb")) is not None
    assert shop.take(claim(profile="3g.20gb")) is None


def test_it_is_said_what_is_in_use_and_what_is_not_there_at_all():
    """A person could not know whether to wait, or to talk to the administrator."""
    shop = Shop(fixed("n", LAYOUT, LAYOUT, SEVENTHS))
    for _ in range(2):
        assert shop.take(claim(profile="3g.20gb")) is not None
    found = shop.ask(claim(profile="3g.20gb"))
    assert {(each.reason, each.count) for each in found.reasons} == {
        (WaitReason.GPU_INSTANCES_TAKEN, 2),
        (WaitReason.GPU_NOT_IN_LAYOUT, 1),
    }
    assert "2 x NVIDIA A100-SXM4-40GB: no free instance of that size in the layout that its administrator fixed" in (
        found.message
    )


def test_equal_layouts_are_one_kind_whatever_their_order():
    """Each GPU would be a kind of its own, and every decision would cost as much as there are GPUs."""
    (gpu,) = fixed("b", LAYOUT).gpus
    other = msgspec.structs.replace(gpu, instances=gpu.instances[::-1])
    shop = Shop(fixed("a", LAYOUT), snapshot("b", (other,), modes=ALL_MODES))
    assert len({gpu.kind for gpu in shop.cluster.gpus.values()}) == 1
