"""Which places and shares a request gets."""

from collections import Counter

import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, kinds, only, snapshot
from factories.scheduling.resize import MODES, NODE, fractional, mps, with_gpus
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid
from sluice.contracts.reasons import WaitReason
from sluice.mig.catalog import find_model
from sluice_allocator.core.placement import PlacementConfig
from sluice_allocator.core.placement.nodes.device_spec import WHOLE, shape_for


def places(said) -> list:
    devices = [device for grant in only(msg.Grant, said) if not grant.adopted for device in grant.booking.devices]
    return [(each.gpu, each.profile, each.start) for each in devices]


A100, H100 = find_model("a100-40gb"), find_model("h100-sxm-80gb")


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
    gb10 = gpu_report("node-a", 0, model="gb10", mig=False)
    empty.add_node(snapshot("node-a", (gb10,), modes=MODES))
    (waits,) = empty.asks(asked("p1", claim(**({"profile": None} | ask))))
    assert WaitReason.GPU_MEMORY_UNKNOWN in {reason.reason for reason in waits.reasons}
    assert "does not report the memory of GB10" in waits.message


def test_a_cordoned_gpu_gets_no_new_slice_and_its_neighbour_does(empty):
    """Cordoned by UUID: pods go beside it, wait when nothing is left, and come back when it is uncordoned."""
    seen = snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)))
    empty.add_node(seen)
    cordon, gpus = subjects.cordon(seen.node), (GpuUuid("GPU-node-a-0"),)
    empty.observe(cordon, msg.Cordoned(node=seen.node, gpus=gpus, why="noisy"))
    whole = claim(profile="7g.40gb")
    assert places(empty.asks(asked("p1", whole))) == [("GPU-node-a-1", "7g.40gb", 0)]
    (pending,) = empty.asks(asked("p2", whole))
    assert {each.reason for each in pending.reasons} == {WaitReason.NODE_CORDONED, WaitReason.GPU_LAYOUT_FULL}
    served = empty.words(empty.observe(cordon, msg.Uncordoned(node=seen.node)))
    assert places(served) == [("GPU-node-a-0", "7g.40gb", 0)]


def test_a_gpu_without_mig_is_only_given_whole():
    """A whole-GPU ask gets it; a sized ask does not waste it."""
    whole, sized = claim(profile=None), claim(profile=None, memory_mib=8000)
    assert shape_for(A100, whole, PlacementConfig(), mig=False) is WHOLE
    assert shape_for(A100, sized, PlacementConfig(), mig=False) is WaitReason.GPU_MODE_NOT_FIT


def test_several_gpus_come_from_one_node_or_not_at_all(empty):
    """Two whole GPUs on nodes of one GPU each: pending; on a node of two: both."""
    empty.add_nodes("node-a", "node-b")
    assert kinds(empty.asks(asked("p1", claim(profile=None, gpus=2)))) == [msg.Pending]
    there = [("GPU-node-c-0", "7g.40gb", 0), ("GPU-node-c-1", "7g.40gb", 0)]
    assert places(empty.add_nodes("node-c", gpus=2)) == there


def daemon(gpu: msg.GpuReport, **changes) -> msg.MpsDaemonReport:
    values = {"profile": None, "start": 0, "size": gpu.memory_slices, "device": gpu.uuid, "namespace": "default"}
    return msg.MpsDaemonReport(**(values | {"uid": 1000, "state": "ready", "pid": 4711} | changes))


def seen_again(bench: Bench, generation: int, gpu: msg.GpuReport) -> list:
    return bench.words(bench.pull(snapshot("node-a", (gpu,), modes=MODES, generation=generation)))


def warnings(bench: Bench, *claims: msg.Claim) -> tuple[str, ...]:
    """The Bound of a pod with such shares."""
    (bound,) = bench.words(bench.ready(bench.granted("p1", *claims)))
    return bound.warnings


def test_a_container_with_shares_of_two_devices_is_told_that_it_can_use_one(empty):
    """Its process would find one GPU where it asked for two, and nothing would say why."""
    with_gpus(empty, gpu_report("node-a", 0, mig=False), gpu_report("node-a", 1, mig=False))
    (warning,) = warnings(empty, claim(profile=None, shares_percent=160))
    assert warning.startswith("container 'main' has shares of several devices; a process can talk to one MPS daemon")
    (grant,) = empty.allocator.ctx.facts.ledger.values()
    assert len({device.gpu for device in grant.booking.devices}) == 2


def test_containers_with_one_share_each_are_told_nothing(empty):
    with_gpus(empty, gpu_report("node-a", 0, mig=False))
    assert warnings(empty, mps(container="a"), mps(container="b")) == ()


@pytest.mark.parametrize("time_quota", [False, True])
def test_a_time_quota_that_is_not_enforced_is_reported(empty, time_quota):
    with_gpus(empty, gpu_report("node-a", 0, mig=False), time_quota=time_quota)
    told = warnings(empty, fractional(30, 1000, quota_request_permille=300, quota_limit_permille=800))
    expected = [] if time_quota else ["QuotaNotEnforced: container 'main' asks for 30 % to 80 % of the time"]
    assert [text.partition(",")[0] for text in told] == expected


def test_clients_that_come_and_go_are_no_news_to_the_allocator(empty):
    """Each process of a tenant would make the allocator look at all places of its node again."""
    gpu = gpu_report("node-a", 0, mig=False)
    with_gpus(empty, replace(gpu, daemons=(daemon(gpu),)))
    before = empty.allocator.ctx.cluster.gpus[gpu.uuid]
    seen_again(empty, 2, replace(gpu, daemons=(daemon(gpu, clients=3),)))
    assert empty.allocator.ctx.cluster.gpus[gpu.uuid] is before
    kept = empty.allocator.ctx.facts.inventories[NODE].snapshot
    assert (kept.generation, kept.gpus[0].daemons) == (2, ())


def test_no_tenant_joins_a_gpu_whose_daemon_is_in_trouble_and_none_on_it_is_put_out(empty):
    """A pod would be bound to a daemon that refuses it; or a tenant would lose its slice to a fault that passes."""
    gpu = gpu_report("node-a", 0, mig=False)
    first = with_gpus(empty, gpu).bound("p1", mps())
    out = msg.PlacementReport(start=0, size=gpu.memory_slices)
    assert seen_again(empty, 2, replace(gpu, quarantined=(out,))) == []
    assert kinds(empty.asks(asked("p2", mps()))) == [msg.Pending]
    assert list(empty.allocator.ctx.cluster.booked()) == [first.booking.allocation]
    (joined,) = only(msg.Grant, seen_again(empty, 3, gpu))
    assert joined.booking.devices[0].gpu == gpu.uuid


def test_no_tenant_joins_an_instance_whose_daemon_is_in_trouble_and_the_rest_of_the_gpu_is_used(empty):
    """One bad home would put the whole GPU out of use, or the next tenant beside the fault."""
    gpu = gpu_report("node-a", 0)
    first = with_gpus(empty, gpu).bound("p1", mps())
    (home,) = first.booking.devices
    out = msg.PlacementReport(start=home.start, size=home.size)
    assert seen_again(empty, 2, replace(gpu, quarantined=(out,))) == []
    (other,) = empty.granted("p2", mps()).booking.devices
    assert other.start + other.size <= home.start or home.start + home.size <= other.start
    assert first.booking.allocation in empty.allocator.ctx.cluster.booked()


def test_a_home_on_an_instance_takes_its_part_of_the_clients_an_mps_server_serves(empty):
    """A client beyond them is refused by the server: the pod would be bound and its process fail."""
    gpu = gpu_report("node-a", 0, mps_clients_max=7)
    with_gpus(empty, gpu)
    grants = [empty.bound(f"p{number}", mps(1024)) for number in range(7)]
    tenants = Counter((device.profile, device.start) for grant in grants for device in grant.booking.devices)
    sms = {profile.name: profile.multiprocessors for profile in gpu.profiles}
    assert all(count <= max(1, 7 * sms[profile] // max(sms.values())) for (profile, _), count in tenants.items())
    assert kinds(empty.asks(asked("p8", mps(1024))))[0] is msg.Pending
