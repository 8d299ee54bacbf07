"""Shares as the allocator gives them: what their pods read, and where none is put any more."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, ready_of, snapshot, working_allocator

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import (
    Bound,
    Claim,
    GpuReport,
    Grant,
    MpsDaemonReport,
    NodeInventory,
    Pending,
    PlacementReport,
)

NODE = NodeName("node-a")
MODES = ("exclusive", "mps", "fractional")


def sharing(*gpus: GpuReport, time_quota: bool = False) -> Bench:
    """An allocator with node-a open, whose agent can share its GPUs."""
    bench = working_allocator()
    bench.add_node(snapshot("node-a", gpus, modes=MODES, time_quota=time_quota))
    bench.said.clear()
    return bench


def share(memory_mib: int = 4096, *, container: str = "main") -> Claim:
    return claim(container=container, profile=None, modes=("mps",), memory_mib=memory_mib, uid=1000)


def daemon(gpu: GpuReport, **changes) -> MpsDaemonReport:
    values = {"profile": None, "start": 0, "size": gpu.memory_slices, "device": gpu.uuid, "namespace": "default"}
    return MpsDaemonReport(**(values | {"uid": 1000, "state": "ready", "pid": 4711} | changes))


def seen_anew(bench: Bench, generation: int, *gpus: GpuReport) -> list:
    seen = snapshot("node-a", gpus, modes=MODES, generation=generation)
    return bench.observe(subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False))


def test_a_container_with_shares_of_two_devices_is_told_that_it_can_use_one():
    """Its process would find one GPU where it asked for two, and nothing would say why."""
    bench = sharing(gpu_report("node-a", 0, mig=False), gpu_report("node-a", 1, mig=False))
    (write,) = bench.land_all(bench.request(asked("p1", claim(profile=None, shares_percent=160))))
    assert isinstance(write.message, Grant)
    assert len({device.gpu for device in write.message.booking.devices}) == 2

    (bound,) = bench.land_all(bench.ready(write.message))

    assert isinstance(bound.message, Bound)
    (warning,) = bound.message.warnings
    assert warning.startswith("container 'main' has shares of several devices; a process can talk to one MPS daemon")


def test_containers_with_one_share_each_are_told_nothing():
    """A warning that is always there is read by no one."""
    bench = sharing(gpu_report("node-a", 0, mig=False))
    claims = (share(container="a"), share(container="b"))
    grant = bench.granted("p1", *claims)

    (bound,) = bench.land_all(bench.ready(grant))

    assert bound.message.warnings == ()


@pytest.mark.parametrize("time_quota", [False, True])
def test_a_quota_of_time_that_nobody_enforces_is_told(time_quota):
    """Its neighbours' owner would count on a limit that is not there."""
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
    out = PlacementReport(start=0, size=gpu.memory_slices)

    assert bench.land_all(seen_anew(bench, 2, msgspec.structs.replace(gpu, quarantined=(out,)))) == []
    (waits,) = bench.land_all(bench.request(asked("p2", share())))
    assert isinstance(waits.message, Pending)
    assert list(bench.allocator.ctx.cluster.booked()) == [first.booking.allocation]

    landed = bench.land_all(seen_anew(bench, 3, gpu))
    (joined,) = [write.message for write in landed if isinstance(write.message, Grant)]
    assert joined.booking.devices[0].gpu == gpu.uuid


def test_nobody_joins_an_instance_whose_daemon_is_in_trouble_and_the_rest_of_the_gpu_is_used():
    """One bad home would put the whole GPU out of use, or the next tenant beside the fault."""
    gpu = gpu_report("node-a", 0)
    bench = sharing(gpu)
    first = bench.bound("p1", share())
    (home,) = first.booking.devices
    out = PlacementReport(start=home.start, size=home.size)

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
    assert isinstance(bench.land_all(bench.request(asked("p8", share(memory_mib=1024))))[0].message, Pending)


def test_a_share_that_is_ready_again_after_its_daemon_died_keeps_its_place():
    """The binding carries the warning and nothing else of it changes."""
    bench = sharing(gpu_report("node-a", 0, mig=False))
    grant = bench.bound("p1", share())
    word = msgspec.structs.replace(ready_of(grant), warnings=("its MPS daemon died and was started again",))

    (bound,) = bench.land_all(bench.observe(subjects.slice_(NODE, grant.booking.allocation), word))

    assert (bound.message.allocation, bound.message.revision) == (grant.booking.allocation, 2)
    assert bound.message.warnings == word.warnings
