"""Which places and shares a request gets."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import Cordoned, Grant, Pending, Uncordoned
from sluice.contracts.reasons import WaitReason
from sluice.mig.catalog import find_model
from sluice_allocator.core.placement import PlacementConfig
from sluice_allocator.core.placement.nodes.device_spec import WHOLE, shape_for


def places(writes) -> list:
    return [
        (d.gpu, d.profile, d.start)
        for w in writes
        if isinstance(w.message, Grant) and not w.message.adopted
        for d in w.message.booking.devices
    ]


A100 = find_model("a100-40gb")


H100 = find_model("h100-sxm-80gb")


@pytest.mark.parametrize(
    ("model", "ask", "profile"),
    [
        (A100, {"memory_mib": 4864}, "1g.5gb"),
        (A100, {"memory_mib": 4865}, "1g.10gb"),
        (A100, {"memory_mib": 8000}, "1g.10gb"),
        (A100, {"memory_mib": 20000}, "3g.20gb"),
        (A100, {"sm_count": 15}, "2g.10gb"),
        (A100, {"sm_percentage": 50}, "4g.20gb"),
        (A100, {"sm_percentage": 1}, "1g.5gb"),
        (A100, {"sm_percentage": 100}, "7g.40gb"),
        (A100, {}, "7g.40gb"),
        (H100, {"sm_count": 20}, "1g.20gb"),
        (H100, {"sm_percentage": 20, "memory_mib": 30000}, "3g.40gb"),
    ],
)
def test_a_claim_never_gets_less_than_it_asks_for(model, ask, profile):
    """Sizes round up to the smallest profile that is enough by compute slices, then memory."""
    shape = shape_for(model, claim(**({"profile": None} | ask)), PlacementConfig(), mig=True)
    assert shape.name == profile


def _gb10(node):
    return replace(
        gpu_report(node, 0, mig=False),
        model="NVIDIA GB10",
        memory_mib=0,
        multiprocessors=48,
        memory_slices=1,
        compute_slices=1,
        profiles=(),
    )


@pytest.mark.parametrize(
    "ask",
    [
        {"memory_mib": 8000},
        {"memory_percentage": 50},
        {"memory_mib": 8000, "modes": ("mps",), "uid": 0},
        {"sm_partition": 20, "modes": ("fractional",), "uid": 0},
        {"shares_percent": 50, "modes": ("fractional",), "uid": 0},
    ],
    ids=["memory", "part of the memory", "share by memory", "share by SMs", "part of a GPU"],
)
def test_who_asks_for_a_part_of_a_gpu_whose_memory_is_not_known_is_told_so(empty, ask):
    """A share of an unknown memory would be one without a limit, or one of nothing."""
    empty.add_node(snapshot("node-a", (_gb10("node-a"),), modes=("exclusive", "mps", "fractional")))
    writes = empty.land_all(empty.request(asked("p1", claim(**({"profile": None} | ask)))))
    assert places(writes) == []
    (waits,) = [write.message for write in writes if isinstance(write.message, Pending)]
    assert WaitReason.GPU_MEMORY_UNKNOWN in {reason.reason for reason in waits.reasons}
    assert "does not report the memory of GB10" in waits.message


def test_a_cordoned_gpu_gets_no_new_slice_and_its_neighbour_does(empty):
    """Cordoned by UUID: pods go beside it, wait when nothing is left, and come back when it is uncordoned."""
    seen = snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)))
    empty.add_node(seen)
    empty.observe(subjects.cordon(seen.node), Cordoned(node=seen.node, gpus=(GpuUuid("GPU-node-a-0"),), why="noisy"))
    whole = claim(profile="7g.40gb")

    assert places(empty.land_all(empty.request(asked("p1", whole)))) == [("GPU-node-a-1", "7g.40gb", 0)]
    (pending,) = empty.land_all(empty.request(asked("p2", whole)))
    assert {r.reason for r in pending.message.reasons} == {WaitReason.NODE_CORDONED, WaitReason.GPU_LAYOUT_FULL}
    served = empty.land_all(empty.observe(subjects.cordon(seen.node), Uncordoned(node=seen.node)))
    assert places(served) == [("GPU-node-a-0", "7g.40gb", 0)]


def test_a_gpu_without_mig_is_only_given_whole():
    """A whole-GPU ask gets it; a sized ask does not waste it."""
    whole, sized = claim(profile=None), claim(profile=None, memory_mib=8000)
    assert shape_for(A100, whole, PlacementConfig(), mig=False) is WHOLE
    assert shape_for(A100, sized, PlacementConfig(), mig=False) is WaitReason.GPU_MODE_NOT_FIT


def test_several_gpus_come_from_one_node_or_not_at_all(empty):
    """Two whole GPUs on nodes of one GPU each: pending; on a node of two: both."""
    empty.add_nodes("node-a", "node-b")
    (pending,) = empty.land_all(empty.request(asked("p1", claim(profile=None, gpus=2))))
    assert isinstance(pending.message, Pending)

    seen = snapshot("node-c", (gpu_report("node-c", 0), gpu_report("node-c", 1)))
    assert places(empty.add_node(seen)) == [("GPU-node-c-0", "7g.40gb", 0), ("GPU-node-c-1", "7g.40gb", 0)]


NODE = NodeName("node-a")
MODES = ("exclusive", "mps", "fractional")


def sharing(*gpus: msg.GpuReport, time_quota: bool = False) -> Bench:
    """An allocator with node-a open, whose agent can share its GPUs."""
    bench = working_allocator()
    bench.add_node(snapshot("node-a", gpus, modes=MODES, time_quota=time_quota))
    bench.said.clear()
    return bench


def share(memory_mib: int = 4096, *, container: str = "main") -> msg.Claim:
    return claim(container=container, profile=None, modes=("mps",), memory_mib=memory_mib, uid=1000)


def daemon(gpu: msg.GpuReport, **changes) -> msg.MpsDaemonReport:
    values = {"profile": None, "start": 0, "size": gpu.memory_slices, "device": gpu.uuid, "namespace": "default"}
    return msg.MpsDaemonReport(**(values | {"uid": 1000, "state": "ready", "pid": 4711} | changes))


def seen_anew(bench: Bench, generation: int, *gpus: msg.GpuReport) -> list:
    seen = snapshot("node-a", gpus, modes=MODES, generation=generation)
    return bench.pull(seen)


def test_a_container_with_shares_of_two_devices_is_told_that_it_can_use_one():
    """Its process would find one GPU where it asked for two, and nothing would say why."""
    bench = sharing(gpu_report("node-a", 0, mig=False), gpu_report("node-a", 1, mig=False))
    (write,) = bench.land_all(bench.request(asked("p1", claim(profile=None, shares_percent=160))))
    assert isinstance(write.message, msg.Grant)
    assert len({device.gpu for device in write.message.booking.devices}) == 2

    (bound,) = bench.land_all(bench.ready(write.message))

    assert isinstance(bound.message, msg.Bound)
    (warning,) = bound.message.warnings
    assert warning.startswith("container 'main' has shares of several devices; a process can talk to one MPS daemon")


def test_containers_with_one_share_each_are_told_nothing():
    bench = sharing(gpu_report("node-a", 0, mig=False))
    claims = (share(container="a"), share(container="b"))
    grant = bench.granted("p1", *claims)

    (bound,) = bench.land_all(bench.ready(grant))

    assert bound.message.warnings == ()


@pytest.mark.parametrize("time_quota", [False, True])
def test_a_quota_of_time_that_nobody_enforces_is_told(time_quota):
    bench = sharing(gpu_report("node-a", 0, mig=False), time_quota=time_quota)
    quota = {"sm_partition": 30, "quota_request_permille": 300, "quota_limit_permille": 800}
    grant = bench.granted("p1", claim(profile=None, modes=("fractional",), memory_mib=1000, **quota))

    (bound,) = bench.land_all(bench.ready(grant))

    assert [text.partition(",")[0] for text in bound.message.warnings] == (
        [] if time_quota else ["QuotaNotEnforced: container 'main' asks for 30 % to 80 % of the time"]
    )


def test_clients_that_come_and_go_are_no_news_to_the_allocator():
    """Each process of a tenant would make the allocator look at all places of its node again."""
    gpu = gpu_report("node-a", 0, mig=False)
    bench = sharing(msgspec.structs.replace(gpu, daemons=(daemon(gpu),)))
    before = bench.allocator.ctx.cluster.gpus[gpu.uuid]

    seen_anew(bench, 2, msgspec.structs.replace(gpu, daemons=(daemon(gpu, clients=3),)))

    assert bench.allocator.ctx.cluster.gpus[gpu.uuid] is before
    kept = bench.allocator.ctx.facts.inventories[NODE].snapshot
    assert kept.generation == 2
    assert kept.gpus[0].daemons == ()


def test_nobody_joins_a_gpu_whose_daemon_is_in_trouble_and_nobody_on_it_is_put_out():
    """A pod would be bound to a daemon that refuses it; or a tenant would lose its slice to a fault that passes."""
    gpu = gpu_report("node-a", 0, mig=False)
    bench = sharing(gpu)
    first = bench.bound("p1", share())
    out = msg.PlacementReport(start=0, size=gpu.memory_slices)

    assert bench.land_all(seen_anew(bench, 2, msgspec.structs.replace(gpu, quarantined=(out,)))) == []
    (waits,) = bench.land_all(bench.request(asked("p2", share())))
    assert isinstance(waits.message, msg.Pending)
    assert list(bench.allocator.ctx.cluster.booked()) == [first.booking.allocation]

    landed = bench.land_all(seen_anew(bench, 3, gpu))
    (joined,) = [write.message for write in landed if isinstance(write.message, msg.Grant)]
    assert joined.booking.devices[0].gpu == gpu.uuid


def test_nobody_joins_an_instance_whose_daemon_is_in_trouble_and_the_rest_of_the_gpu_is_used():
    """One bad home would put the whole GPU out of use, or the next tenant beside the fault."""
    gpu = gpu_report("node-a", 0)
    bench = sharing(gpu)
    first = bench.bound("p1", share())
    (home,) = first.booking.devices
    out = msg.PlacementReport(start=home.start, size=home.size)

    assert bench.land_all(seen_anew(bench, 2, msgspec.structs.replace(gpu, quarantined=(out,)))) == []
    (other,) = bench.granted("p2", share()).booking.devices
    assert other.start + other.size <= home.start or home.start + home.size <= other.start
    assert first.booking.allocation in bench.allocator.ctx.cluster.booked()


def test_a_home_on_an_instance_takes_its_part_of_the_clients_an_mps_server_serves():
    """A client beyond them is refused by the server: the pod would be bound and its process fail."""
    gpu = gpu_report("node-a", 0, mps_clients_max=7)
    bench = sharing(gpu)
    tenants: dict[tuple[str | None, int], int] = {}
    for number in range(7):
        (device,) = bench.bound(f"p{number}", share(memory_mib=1024)).booking.devices
        tenants[device.profile, device.start] = tenants.get((device.profile, device.start), 0) + 1
    sms = {profile.name: profile.multiprocessors for profile in gpu.profiles}
    assert all(count <= max(1, 7 * sms[profile] // max(sms.values())) for (profile, _), count in tenants.items())
    assert isinstance(bench.land_all(bench.request(asked("p8", share(memory_mib=1024))))[0].message, msg.Pending)
