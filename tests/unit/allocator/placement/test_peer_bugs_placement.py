"""Known faults of other systems in choosing a place: one test each that shows they are not ours."""

import itertools

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, given, node, percents, share

from sluice.contracts.messages import InstanceReport
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, PodRequest, parse_pod
from sluice_allocator.core.placement import NoPlace, Place, PlacementConfig
from sluice_allocator.core.placement.spec.config import Geometry

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


def test_a_hundred_at_once_on_one_node_of_eight_are_all_placed():
    """HAMi #1655: of 100 concurrent pods on an 8-GPU node many failed."""
    shop = Shop(node("node-a", 8, mig=False))
    names = [shop.take(*claims_of({"nvidia.com/vgpu-mode": "hami-core"}, gpu=1, gpumem=3000)) for _ in range(100)]
    assert None not in names


@pytest.mark.parametrize("memory_mib", [5000, 5120])
def test_nearly_equal_memory_goes_to_the_same_kind_of_place(memory_mib):
    """HAMi #1054: 5000 and 5120 MiB took different geometries and so different nodes."""
    shop = Shop(node("node-a", 2), node("node-b", 2))
    first = shop.devices(shop.take(*asked(gpu=1, gpumem=memory_mib)))
    second = shop.devices(shop.take(*asked(gpu=1, gpumem=memory_mib)))
    assert [given(first)[0][0], given(second)[0][0]] == ["2g.10gb", "2g.10gb"]
    assert first[0].gpu == second[0].gpu


def test_two_virtual_gpus_of_one_pod_fit_on_one_gpu_whatever_the_order_of_the_table():
    """HAMi #1014: the order of a custom table decided, and two vGPUs on one GPU stayed pending."""
    for profiles in itertools.permutations(("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")):
        rules = PlacementConfig(geometries=(Geometry(("A100-SXM4-40GB",), profiles),))
        shop = Shop(node("node-a", 1), rules=rules)
        devices = shop.devices(shop.take(*asked(gpu=2, gpumem=8000)))
        assert [profile for profile, _, _ in given(devices)] == ["2g.10gb", "2g.10gb"]


def test_a_small_and_a_full_instance_are_served_from_two_gpus():
    """HAMi #1422: 1g.18gb and 7g.141gb together could not be served."""
    shop = Shop(node("node-a", 2, model="h200-141gb"))
    place = shop.ask(claim(profile="1g.18gb"), claim(container="second", profile="7g.141gb"))
    assert isinstance(place, Place)
    assert [device.profile for device in place.devices] == ["1g.18gb", "7g.141gb"]
    assert len({device.gpu for device in place.devices}) == 2


def test_two_decisions_before_the_first_is_confirmed_never_share_a_place():
    """HAMi #2232: nothing was kept between reading the usage and writing it, so concurrent callers got one device."""
    shop = Shop(node("node-a", 1))
    places = [shop.devices(shop.take(claim(profile="1g.5gb")))[0] for _ in range(7)]
    assert len({(device.gpu, device.start) for device in places}) == 7
    assert shop.take(claim(profile="1g.5gb")) is None


def test_a_gpu_in_use_still_takes_a_size_of_another_geometry():
    """HAMi #948: no reshuffle while any slice of a GPU is in use, so a 3g waited beside a single 1g."""
    shop = Shop(node("node-a", 1))
    assert shop.take(*asked(gpu=1, gpumem=4000)) is not None
    devices = shop.devices(shop.take(*asked(gpu=1, gpumem=20000)))
    assert given(devices) == [("3g.20gb", 0, 4)]


def test_two_equal_requests_get_two_instances():
    """FaST-GShare 3.6.1: two concurrent requests for one profile got the same entry, and so the same MIG device."""
    shop = Shop(node("node-a", 1))
    first, second = (shop.devices(shop.take(claim(profile="2g.10gb")))[0] for _ in range(2))
    assert (first.gpu, first.start) != (second.gpu, second.start)


def test_all_of_a_mig_gpu_fits_although_its_largest_profile_has_fewer_sms():
    """FaST-GShare 3.6.6: 98 of 108 SMs are 91 percent by its table, so 100 percent never fitted an A100."""
    place = Shop(node("node-a", 1)).ask(claim(sm_percentage=100))
    assert isinstance(place, Place)
    assert place.devices[0].profile == "7g.40gb"


def test_an_exclusive_request_by_sms_alone_is_served_and_released():
    """FaST-GShare 3.6.5: exclusive with only an SM count, and removing an exclusive pod, ended in nil dereferences."""
    keys = {"allocation_type": "EXCLUSIVE", "gpu_sm_value": "20", "gpu_mem": "1073741824"}
    shop = Shop(node("node-a", 1))
    name = shop.take(*claims_of({f"fastgshare/{key}": value for key, value in keys.items()}))
    assert given(shop.devices(name))[0][0] == "2g.10gb"
    assert name is not None
    shop.give_back(name)
    assert sum(shop.creatable(GPU).values()) == 19


@pytest.mark.parametrize("value", ["0.3", "0.003", "0.0001"])
def test_a_part_of_a_percent_is_never_free_of_charge(value):
    """tensor-fusion: 0.3 percent of 100 TFLOPS is cut to 0, which is compute for nothing."""
    ask = parse_pod({"sluice.dev/sm-partition": value}, (ContainerRequest("main"),))
    assert isinstance(ask, Refusal)
    assert (ask.field, ask.value) == ("sluice.dev/sm-partition", value)


@pytest.mark.parametrize(("percent", "gpus"), [(230, 8), (175, 2), (190, 2), (220, 4), (110, 3)])
def test_an_amount_over_several_gpus_loses_nothing_to_rounding(percent, gpus):
    """backend.ai: 2.3 on eight idle GPUs was granted as 5 x 0.40; 1.9 on two as 0.75 + 0.75."""
    shop = Shop(node("node-a", gpus, mig=False))
    assert sum(percents(shop.devices(shop.take(share(percent))))) == percent


def test_a_node_that_has_enough_in_all_but_in_crumbs_is_not_chosen():
    """backend.ai #3515: the manager saw the node's total only, and sent 0.5 to a node with 0.3 + 0.3 free."""
    shop = Shop(node("node-a", 2, mig=False), node("node-b", 2, mig=False))
    for uuid in ("GPU-node-a-0", "GPU-node-a-1"):
        shop.take_on(uuid, claim(modes=("fractional",), sm_partition=70))
    for uuid in ("GPU-node-b-0", "GPU-node-b-1"):
        shop.take_on(uuid, claim(modes=("fractional",), sm_partition=50))
    devices = shop.devices(shop.take(claim(modes=("fractional",), sm_partition=50)))
    assert devices[0].gpu.startswith("GPU-node-b")


def test_a_request_that_fails_half_way_takes_nothing():
    """backend.ai #1510: the first slot type stayed allocated when the second one failed."""
    shop = Shop(node("node-a", 1))
    before = shop.creatable(GPU)
    for _ in range(3):
        assert isinstance(shop.ask(claim(profile="3g.20gb"), claim(container="second", profile="7g.40gb")), NoPlace)
    assert shop.creatable(GPU) == before


def test_giving_back_twice_frees_nothing_twice():
    """backend.ai-agent #180: a double free left negative usage, and the device was over-committed after it."""
    shop = Shop(node("node-a", 1, mig=False))
    first, _second = shop.take(share(50)), shop.take(share(50))
    assert first is not None
    shop.give_back(first)
    assert not shop.cluster.unbook(first)
    assert shop.take(share(50)) is not None
    assert shop.take(share(1)) is None


def test_two_slices_asked_for_are_two():
    """InstaSlice #614: a container that asked for two slices got one."""
    shop = Shop(node("node-a", 1))
    devices = shop.devices(shop.take(*claims_of({}, **{"mig-1g.5gb": "2"})))
    assert [profile for profile, _, _ in given(devices)] == ["1g.5gb", "1g.5gb"]
    assert len({start for _, start, _ in given(devices)}) == 2


def test_seven_small_instances_fill_one_gpu_before_a_second():
    """DRA driver #932: seven 1g instances were spread over GPUs."""
    shop = Shop(*(node(f"node-{number}", 4) for number in range(3)))
    for _ in range(7):
        shop.take(claim(profile="1g.5gb"))
    assert len({device.gpu for device in shop.all_devices()}) == 1


def test_a_small_instance_never_blocks_the_largest_that_could_stay():
    """DRA driver #933: first-fit puts 1g at 0, which kills the only place of a 4g and one of two 3g."""
    shop = Shop(node("node-a", 1))
    shop.take(claim(profile="1g.5gb"))
    assert shop.creatable(GPU)["4g.20gb"] == 1
    assert shop.creatable(GPU)["3g.20gb"] == 1
