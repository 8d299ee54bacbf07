"""What nothing here could ever serve is distinguished from what waits for room, with the nearest alternative."""

import msgspec
import pytest
from factories.scheduling.allocator import gpu_report, snapshot, unread
from factories.scheduling.placement import Shop, claim, node, share

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import NoPlace, Place, PlaceRequest, too_few_gpus
from sluice_allocator.core.placement.explain import impossible
from sluice_allocator.core.placement.explain.no_gpu_fits import closest_profile

GIB = 1024
WHOLE = claim()
SMALL = claim(profile="1g.5gb")
LITTLE = msg.HostRoom(cpu_milli=64_000, memory_mib=GIB)
ROOM = msg.HostRoom(cpu_milli=64_000, memory_mib=503 * GIB, resources={"rdma/shared_mlx5": 2})


def answer(shop: Shop, *claims: msg.Claim, **rest: object) -> NoPlace:
    found = shop.ask(*(claims or (WHOLE,)), **rest)
    assert isinstance(found, NoPlace), f"there is a place: {found}"
    return found


def never(shop: Shop, *claims: msg.Claim, **rest: object) -> str:
    """The sentence where nothing here could ever serve it; empty where it only waits."""
    found = answer(shop, *claims, **rest)
    return found.message if found.reasons[0].reason is WaitReason.NO_NODE_CAN_FIT else ""


def why(found: NoPlace) -> list[WaitReason]:
    return [each.reason for each in found.reasons]


def hosted(
    shop: Shop, name: str = "n", *, free: msg.HostRoom = ROOM, offers: msg.HostRoom | None = ROOM, **facts
) -> Shop:
    left = {"cpu_cores": free.cpu_milli / 1000, "memory_mib": free.memory_mib, "resources": free.resources}
    shop.cluster.set_host(NodeName(name), msg.HostFacts(**left, pods_free=110, allocatable=offers, **facts))
    return shop


def needs(**room: object) -> msg.HostNeeds:
    return msg.HostNeeds(room=msg.HostRoom(**room))


@pytest.mark.parametrize(
    ("models", "asked", "sentence"),
    [
        (
            ["h100-sxm-80gb", "a100-80gb"],
            claim(profile="4g.20gb"),
            "no GPU here has 4g.20gb. Closest: 4g.40gb (H100-SXM-80GB, A100-80GB). A100-40GB has it",
        ),
        (["a100-40gb"], claim(profile="9g.80gb"), "no GPU here has 9g.80gb. Closest: 7g.40gb (A100-40GB)"),
        (["a100-40gb"], claim(profile="1g.5gb+gfx"), "no GPU here has 1g.5gb+gfx. Closest: 1g.5gb (A100-40GB)"),
        (
            ["a30", "a100-80gb"],
            claim(memory_mib=170 * GIB),
            "no GPU here has 170 GiB of memory for one device; the most is 79 GiB: 7g.80gb (A100-80GB)",
        ),
        (["a30"], claim(sm_count=99), "no GPU here has 99 SMs for one device; the most is 56"),
        (
            ["a100-40gb"],
            claim(profile="1g.5gb", only=msg.DeviceFilter(models=("B200",))),
            "no GPU here is of a model that it asks for (B200); there is A100-40GB",
        ),
        (
            ["a100-40gb"],
            claim(only=msg.DeviceFilter(not_models=("A100",))),
            "no GPU here is of another model; there is A100-40GB",
        ),
        (["a100-40gb"], claim(only=msg.DeviceFilter(uuids=(GpuUuid("GPU-7"),))), "no GPU here is GPU-7"),
        (
            ["a100-40gb"],
            claim(profile="1g.5gb", memory_mib=9000),
            "1g.5gb is smaller than the sizes that it asks for beside it",
        ),
    ],
)
def test_what_no_gpu_here_has_is_said_with_what_comes_nearest(models, asked, sentence):
    """A person would read four lines of profiles, and look for the right one."""
    shop = Shop(*(node(f"n{at}", 1, model=model) for at, model in enumerate(models)))
    assert never(shop, asked) == sentence


OFF_A100 = msg.HostNeeds(node_selector={"zone": "b"})


@pytest.mark.parametrize(
    ("asked", "host", "sentence"),
    [
        (
            claim(profile="4g.20gb"),
            OFF_A100,
            "no GPU on the nodes that it may use has 4g.20gb. Closest: 4g.40gb (H100-SXM-80GB). A100-40GB has it",
        ),
        (
            claim(profile="4g.20gb", only=msg.DeviceFilter(models=("H100",))),
            msg.HostNeeds(),
            (
                "no GPU of a model that it asks for (H100) here has 4g.20gb. Closest: 4g.40gb (H100-SXM-80GB). "
                "A100-40GB has it"
            ),
        ),
        (
            claim(profile="4g.20gb", only=msg.DeviceFilter(not_models=("A100",))),
            msg.HostNeeds(),
            "no GPU of another model than A100 here has 4g.20gb. Closest: 4g.40gb (H100-SXM-80GB). A100-40GB has it",
        ),
        (
            claim(only=msg.DeviceFilter(models=("A100-40GB",))),
            OFF_A100,
            "no GPU on the nodes that it may use is of a model that it asks for (A100-40GB); there is H100-SXM-80GB",
        ),
    ],
)
def test_what_only_the_pod_itself_keeps_off_is_not_called_missing_here(asked, host, sentence):
    """A person sees the GPU in the list, and would read that none here has its profile."""
    shop = Shop(node("a", 1), node("b", 1, model="h100-sxm-80gb"))
    hosted(shop, "a", labels={"zone": "a"})
    hosted(shop, "b", labels={"zone": "b"})
    assert never(shop, asked, host=host) == sentence


@pytest.mark.parametrize(
    "asked",
    [
        claim(memory_mib=10 * GIB),
        claim(modes=("mps",), memory_mib=GIB),
        claim(modes=("fractional",), shares_percent=50),
    ],
)
def test_a_part_of_a_gpu_whose_memory_is_not_told_is_said_to_be_had_only_whole(asked):
    """A person would look for MIG or for MPS, which the nodes beside it have."""
    shop = Shop(node("a", 1), node("g", 1, model="gb10", mig=False))
    asked = msgspec.structs.replace(asked, only=msg.DeviceFilter(models=("gb10",)))
    assert never(shop, asked) == "the driver does not report the memory of GB10, so it can only be granted whole"


def test_without_mig_an_instance_is_said_to_need_it():
    shop = Shop(node("n", 2, mig=False))
    assert never(shop, SMALL) == "no GPU here has MIG on, which an instance of 1g.5gb needs"


def test_a_mode_that_no_node_serves_is_named():
    shop = Shop(node("n", 1, modes=("exclusive",)))
    assert never(shop, claim(modes=("mps",), memory_mib=1)) == "no node here serves the mode that it asks for (mps)"


def test_an_empty_fleet_says_which_model_has_the_profile():
    """A pod for a pool at zero: it waits, and what it waits for is named."""
    assert answer(Shop(), claim(profile="4g.24gb")).message == (
        "no node with GPUs is known yet; 4g.24gb is a profile of A30-24GB"
    )
    unknown = answer(Shop(), claim(profile="9g.99gb")).message
    assert unknown.startswith("no node with GPUs is known yet; no model that Sluice knows has 9g.99gb. Closest: 7g.")


def test_a_gpu_that_was_never_read_may_be_anything():
    """After a reboot a pod would read that nothing here could serve it."""
    found = answer(Shop(snapshot("n", (unread(gpu_report("n", 0)),))), SMALL)
    assert WaitReason.NO_NODE_CAN_FIT not in why(found)


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ([claim(gpus=3)], "it asks for 3 GPUs, and the most is 2 on one node"),
        ([claim(profile="3g.20gb", gpus=5)], "it asks for 5 x 3g.20gb, and the most is 4 on one node"),
        ([share(250)], "it asks for 3 GPUs, and the most is 2 on one node"),
        ([claim(modes=("mps",), memory_mib=1, gpus=3)], "it asks for 3 x 1 MiB, and the most is 2 on one node"),
        (
            [claim(container=name, profile="7g.40gb") for name in "abc"],
            "its containers together ask for more than the GPUs of any one node hold",
        ),
    ],
)
def test_more_than_any_node_has_is_not_said_to_start_when_one_is_free(claims, sentence):
    assert never(Shop(node("a", 2), node("b", 2), node("c", 1)), *claims) == sentence


@pytest.mark.parametrize(
    "profiles",
    [
        ("1g.5gb+me", "1g.10gb"),
        ("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"),
        ("4g.20gb", "3g.20gb"),
        ("1g.10gb", "2g.10gb", "3g.20gb"),
    ],
)
def test_sizes_that_fit_beside_each_other_are_not_said_never_to_fit(profiles):
    """A GPU holds one +me and three 2g, and others beside those: its owner would look for another node in vain."""
    claims = [claim(container=f"c{at}", profile=profile) for at, profile in enumerate(profiles)]
    shop = Shop(node("a", 1))
    assert isinstance(shop.ask(*claims), Place)
    shop.take_on("GPU-a-0", WHOLE)
    assert never(shop, *claims) == ""
    assert too_few_gpus(shop.cluster, [(PlaceRequest(tuple(claims)), 1)]) is None


def test_where_no_agent_tells_numa_nodes_that_is_said():
    """`The most is 0` beside eight free GPUs makes no reader think of it."""
    shop = Shop(snapshot("n", tuple(gpu_report("n", at, numa_node=None) for at in range(2))))
    sentence = "it asks for 2 GPUs on one NUMA node, and no agent here reports the NUMA nodes of its GPUs"
    assert never(shop, claim(gpus=2, numa_bind=True)) == sentence


def test_more_than_any_numa_node_has_is_said_so():
    """It would wait for a NUMA node to have all of them free, and none has so many."""
    gpus = tuple(gpu_report("n", at, numa_node=at // 2) for at in range(4))
    shop = Shop(snapshot("n", gpus))
    assert isinstance(shop.ask(claim(gpus=2, numa_bind=True)), Place)
    sentence = "it asks for 3 GPUs on one NUMA node, and the most is 2"
    assert never(shop, claim(gpus=3, numa_bind=True)) == sentence


@pytest.mark.parametrize(
    ("room", "sentence"),
    [
        ({"memory_mib": 2048 * GIB}, "it requests 2048 GiB of memory, and the largest node has 503 GiB"),
        ({"cpu_milli": 96_500}, "it requests 96.5 CPUs, and the largest node has 64"),
        ({"resources": {"rdma/shared_mlx5": 4}}, "it requests 4 of rdma/shared_mlx5, and the most on one node is 2"),
        (
            {"resources": {"rdma/shared_mlx6": 1}},
            "no node here has the resource rdma/shared_mlx6; did you mean rdma/shared_mlx5?",
        ),
        (
            {"resources": {"nvidia.com/gpu-mem": 4000}},
            "no node here has the resource nvidia.com/gpu-mem; did you mean nvidia.com/gpumem?",
        ),
        ({"resources": {"zzz": 1}}, "no node here has the resource zzz"),
    ],
)
def test_what_no_node_offers_is_named_with_the_most_that_there_is(room, sentence):
    """It would say that the pod starts when others end."""
    shop = hosted(Shop(node("n", 1)))
    assert never(shop, host=needs(**room)) == sentence


def test_what_others_take_now_is_waited_for():
    shop = hosted(Shop(node("n", 1)), free=msg.HostRoom(cpu_milli=1000, memory_mib=GIB))
    assert why(answer(shop, host=needs(memory_mib=503 * GIB))) == [WaitReason.NODE_INSUFFICIENT_MEMORY]
    assert why(answer(shop, host=needs(cpu_milli=64_000))) == [WaitReason.NODE_INSUFFICIENT_CPU]
    assert why(answer(shop, host=needs(resources={"rdma/shared_mlx5": 2}))) == [WaitReason.NODE_INSUFFICIENT_RESOURCE]


def test_a_larger_node_that_joins_ends_it():
    shop = hosted(Shop(node("n", 1)), free=LITTLE, offers=LITTLE)
    host = needs(memory_mib=20 * GIB)
    assert never(shop, host=host)
    shop.cluster.show(node("large", 1))
    hosted(shop, "large")
    assert isinstance(shop.ask(WHOLE, host=host), Place)
    shop.cluster.forget_node(NodeName("large"))
    assert never(shop, host=host)


def labelled(**labels: str) -> Shop:
    shop = Shop(node("n", 1), node("m", 1))
    hosted(shop, "n", labels=labels)
    return hosted(shop, "m", labels=labels | {"zone": "b"})


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (msg.HostNeeds(node_selector={"zone": "c"}), "no node here has the label zone=c; there are zone=a, zone=b"),
        (msg.HostNeeds(node_selector={"zome": "a"}), "no node here has a label zome; did you mean zone?"),
        (msg.HostNeeds(node_selector={"disk": "x"}), "no node here has the label disk=x; there is disk=ssd"),
        (
            msg.HostNeeds(node_selector={"zone": "b", "only-n": "1"}),
            "no node here has all the labels that its nodeSelector names",
        ),
        (
            msg.HostNeeds(affinity=((msg.NodeExpression(key="zone", operator="In", values=("x", "y")),),)),
            "no node here has the label zone=x, y; there is zone=a, zone=b",
        ),
        (msg.HostNeeds(node_name="gpu-9"), "no node with GPUs here is named gpu-9"),
    ],
)
def test_a_label_that_no_node_has_is_named_with_those_that_there_are(host, sentence):
    """It would read that nodes are not selected, and not which word is wrong."""
    shop = labelled(zone="a", disk="ssd")
    hosted(shop, "n", labels={"zone": "a", "disk": "ssd", "only-n": "1"})
    assert never(shop, host=host) == sentence


def test_a_label_of_single_nodes_is_looked_up_and_not_searched_for():
    """Host names: a class for each node would make each decision look at all of them."""
    names = [f"n{at}" for at in range(70)]
    shop = Shop(*(node(name, 1) for name in names))
    for name in names:
        hosted(shop, name, labels={"kubernetes.io/hostname": name})
    host = msg.HostNeeds(node_selector={"kubernetes.io/hostname": "n99"})
    assert never(shop, host=host).startswith("no node here has the label kubernetes.io/hostname=n99; there are ")
    assert isinstance(shop.ask(WHOLE, host=msg.HostNeeds(node_selector={"kubernetes.io/hostname": "n5"})), Place)


SYSTEM = {
    "node.kubernetes.io/unschedulable": WaitReason.NODE_CORDONED,
    "node.kubernetes.io/not-ready": WaitReason.NODE_NOT_READY,
    "node.kubernetes.io/unreachable": WaitReason.NODE_NOT_READY,
    "node.kubernetes.io/network-unavailable": WaitReason.NODE_NOT_READY,
    "node.kubernetes.io/out-of-service": WaitReason.NODE_NOT_READY,
    "node.cloudprovider.kubernetes.io/uninitialized": WaitReason.NODE_NOT_READY,
    "startup-taint.cluster-autoscaler.kubernetes.io/gpu": WaitReason.NODE_NOT_READY,
    "node.kubernetes.io/memory-pressure": WaitReason.NODE_UNDER_PRESSURE,
    "node.kubernetes.io/disk-pressure": WaitReason.NODE_UNDER_PRESSURE,
    "node.kubernetes.io/pid-pressure": WaitReason.NODE_UNDER_PRESSURE,
    "ToBeDeletedByClusterAutoscaler": WaitReason.NODE_LEAVING,
    "karpenter.sh/disrupted": WaitReason.NODE_LEAVING,
}


@pytest.mark.parametrize("key", SYSTEM)
def test_a_node_that_kubernetes_keeps_pods_from_is_waited_for(key):
    """A person would read that the pod should tolerate a node that is not ready, and the pod would run there."""
    shop = hosted(Shop(node("n", 2)), taints=(msg.Taint(key=key),), cordoned=key.endswith("/unschedulable"))
    found = answer(shop)
    assert why(found) == [SYSTEM[key]]
    assert "tolerat" not in found.message
    hosted(shop)
    assert isinstance(shop.ask(WHOLE), Place)


def test_a_taint_with_a_purpose_is_named_also_beside_one_that_passes():
    taints = (msg.Taint(key="node.kubernetes.io/not-ready"), msg.Taint(key="team", value="x"))
    shop = hosted(Shop(node("n", 1)), taints=taints)
    assert never(shop) == "it does not tolerate the taints of the nodes here: team=x:NoSchedule"


def test_what_a_node_that_is_not_ready_lacks_is_not_waited_for():
    """It would read that the node comes back, and then that it has no such profile."""
    shop = hosted(Shop(node("n", 1)), taints=(msg.Taint(key="node.kubernetes.io/not-ready"),))
    assert never(shop, claim(profile="4g.24gb")).startswith("no GPU here has 4g.24gb")


def test_the_cost_of_telling_does_not_grow_with_the_nodes(monkeypatch):
    """Each answer to a pod that waits would look at the whole fleet."""
    asked = []
    real = impossible.most_on
    monkeypatch.setattr(impossible, "most_on", lambda *args, **kinds: asked.append(1) or real(*args, **kinds))
    counted = []
    for nodes in (3, 60):
        shop = Shop(*(node(f"n{at}", 2) for at in range(nodes)))
        asked.clear()
        assert never(shop, claim(gpus=3))
        counted.append(len(asked))
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("asked", "there", "closest"),
    [
        ("4g.20gb", ["3g.40gb", "4g.40gb", "7g.80gb"], "4g.40gb"),
        ("4g.20gb", ["3g.20gb", "7g.40gb"], "3g.20gb"),
        ("2g.10gb", ["1g.10gb", "3g.20gb"], "3g.20gb"),
        ("1g.5gb", ["1g.20gb", "1g.10gb", "1g.10gb+me"], "1g.10gb"),
        ("1g.5gb+me", ["1g.10gb", "1g.10gb+me"], "1g.10gb+me"),
    ],
)
def test_the_nearest_profile_has_as_many_compute_slices_then_as_much_memory(asked, there, closest):
    found = closest_profile(asked, [("M", name) for name in there])
    assert found is not None
    assert str(found) == f"{closest} (M)"
