"""Known faults of other systems in choosing a place: one test each that shows they are not ours."""

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, given, node, share

from sluice.contracts.messages import InstanceReport
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice_allocator.core.placement import NoPlace, Place

GPU = "GPU-node-a-0"


def claims_of(annotations: dict[str, str], **limits: object):
    """The claims of a pod; names of HAMi's resources are shortened to what follows `nvidia.com/`."""
    named = {f"nvidia.com/{name.replace('_', '-')}": value for name, value in limits.items()}
    ask = parse_pod(annotations, (ContainerRequest("main", limits=named),))
    assert isinstance(ask, PodRequest), ask
    return ask.claims


def asked(**resources: object):
    """The claims that HAMi's resources make on a GPU with MIG."""
    return claims_of({"nvidia.com/vgpu-mode": "mig"}, **resources)


def test_what_others_left_on_a_gpu_is_never_overlapped():
    """HAMi resets enumerate base profiles only: a surviving +me instance blocks a placement it does not know of."""
    snapshot = node("node-a", 1)
    left = InstanceReport(gi_id=9, profile="1g.5gb+me", start=6, size=1)
    gpu = msgspec.structs.replace(snapshot.gpus[0], instances=(left,))
    shop = Shop(msgspec.structs.replace(snapshot, gpus=(gpu,)))
    spans = [given(shop.devices(name))[0] for name in iter(lambda: shop.take(claim(profile="1g.5gb")), None)]
    assert sorted(start for _, start, _ in spans) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("resources", [{"gpu": 1}, {"gpu": 1, "gpumem_percentage": 100}])
def test_a_full_gpu_by_hamis_keys_is_the_largest_profile(resources):
    """HAMi 2.10: no memory means 100 percent of the board, more than any profile has, so nothing fits."""
    place = Shop(node("node-a", 1)).ask(*asked(**resources))
    assert isinstance(place, Place)
    assert given(place.devices) == [("7g.40gb", 0, 8)]


def test_a_model_that_no_table_knows_is_served_by_its_own_report():
    """FaST-GShare 3.6.6: a MIG GPU of a model without an entry in the SM table was left out of the inventory."""
    snapshot = node("node-a", 1)
    gpu = msgspec.structs.replace(snapshot.gpus[0], model="NVIDIA X1000", multiprocessors=111)
    shop = Shop(msgspec.structs.replace(snapshot, gpus=(gpu,)))
    assert shop.take(claim(profile="3g.20gb")) is not None
    assert shop.take(claim(sm_percentage=30)) is not None


def test_the_smallest_share_takes_at_least_one_mib_and_one_percent():
    """tensor-fusion: the same after parsing; a share of one hundredth is charged as one."""
    shop = Shop(node("node-a", 1, mig=False))
    names = [shop.take(share(1)) for _ in range(60)]
    devices = [device for name in names if name is not None for device in shop.devices(name)]
    assert len(devices) == shop.reports[GPU].mps_clients_max
    assert all(device.share and device.share.sm_partition == 1 and device.share.memory_mib == 409 for device in devices)


def test_attributes_of_a_profile_are_not_ignored():
    """mig-adapter: 1g.5gb+me was read as 1g.5gb, and only one instance of a GPU has the media engines."""
    shop = Shop(node("node-a", 1))
    assert shop.take(claim(profile="1g.5gb+me")) is not None
    assert isinstance(shop.ask(claim(profile="1g.5gb+me")), NoPlace)
    assert isinstance(shop.ask(claim(profile="1g.5gb")), Place)
