"""Known faults of other systems in choosing a place: one test each that shows they are not ours."""

import itertools

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, given, node, share

from sluice.contracts.messages import HostNeeds, HostRoom, InstanceReport, Taint, Toleration
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice_allocator.core.placement import NoPlace, Place, PlacementConfig
from sluice_allocator.core.placement.spec.hami_profiles import Geometry

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


def test_two_virtual_gpus_of_one_pod_fit_on_one_gpu_whatever_the_order_of_the_table():
    """HAMi #1014: the order of a custom table decided, and two vGPUs on one GPU stayed pending."""
    for profiles in itertools.permutations(("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")):
        rules = PlacementConfig(geometries=(Geometry(("A100-SXM4-40GB",), profiles),))
        shop = Shop(node("node-a", 1), rules=rules)
        devices = shop.devices(shop.take(*asked(gpu=2, gpumem=8000)))
        assert [profile for profile, _, _ in given(devices)] == ["2g.10gb", "2g.10gb"]


def test_a_gpu_in_use_still_takes_a_size_of_another_geometry():
    """HAMi #948: no reshuffle while any slice of a GPU is in use, so a 3g waited beside a single 1g."""
    shop = Shop(node("node-a", 1))
    assert shop.take(*asked(gpu=1, gpumem=4000)) is not None
    devices = shop.devices(shop.take(*asked(gpu=1, gpumem=20000)))
    assert given(devices) == [("3g.20gb", 0, 4)]


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


def test_an_exclusive_request_by_sms_alone_is_served_and_released():
    """FaST-GShare 3.6.5: exclusive with only an SM count, and removing an exclusive pod, ended in nil dereferences."""
    keys = {"allocation_type": "EXCLUSIVE", "gpu_sm_value": "20", "gpu_mem": "1073741824"}
    shop = Shop(node("node-a", 1))
    name = shop.take(*claims_of({f"fastgshare/{key}": value for key, value in keys.items()}))
    assert given(shop.devices(name))[0][0] == "2g.10gb"
    assert name is not None
    shop.give_back(name)
    assert sum(shop.creatable(GPU).values()) == 19


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


def test_a_pod_is_never_pinned_where_the_scheduler_cannot_put_it():
    """InstaSlice and mig-adapter looked at labels only: here taints, CPU and memory decide too."""
    shop = Shop(node("node-a", 1), node("node-b", 1), node("node-c", 1))
    shop.host("node-a", cpu_cores=0.2)
    shop.host("node-b", taints=(Taint(key="gpu"),))
    shop.host("node-c", memory_mib=100)
    needs = HostNeeds(room=HostRoom(cpu_milli=500, memory_mib=512))
    assert isinstance(shop.ask(claim(), host=needs), NoPlace)
    tolerating = msgspec.structs.replace(needs, tolerations=(Toleration(key="gpu", operator="Exists"),))
    place = shop.ask(claim(), host=tolerating)
    assert isinstance(place, Place)
    assert place.node == "node-b"
