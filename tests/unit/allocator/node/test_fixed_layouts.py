"""Fixed layouts as the allocator hears of them: what is pulled again and again, and what users read."""

from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import GpuReport, Grant, InstanceReport, NodeInventory, Pending

NODE = NodeName("node-a")


def instance(profile: str, start: int, size: int, **changes: object) -> InstanceReport:
    values = {"gi_id": start + 1, "profile": profile, "start": start, "size": size, "uuid": f"MIG-{start}"}
    return InstanceReport(**(values | changes))


def fixed(*instances: InstanceReport) -> GpuReport:
    return gpu_report("node-a", 0, fixed_layout=True, instances=instances)


def with_node(*gpus: GpuReport) -> Bench:
    bench = working_allocator()
    bench.add_node(snapshot("node-a", gpus))
    bench.said.clear()
    return bench


def pulled(bench: Bench, generation: int, *gpus: GpuReport) -> list:
    """The node is pulled again; what is written then, landed."""
    seen = snapshot("node-a", gpus, generation=generation)
    return bench.land_all(bench.observe(subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False)))


def place(grant: Grant) -> tuple[str | None, int]:
    (device,) = grant.booking.devices
    return device.profile, device.start


def test_who_has_an_instance_is_no_news():
    """Each slice that comes or goes would make the allocator look at all places of its node again."""
    bench = with_node(fixed(instance("1g.5gb", 6, 1)))
    gpu = bench.allocator.ctx.cluster.gpus[gpu_report("node-a", 0).uuid]
    pulled(bench, 2, fixed(instance("1g.5gb", 6, 1, allocation=AllocationId("a1"))))
    pulled(bench, 3, fixed(instance("1g.5gb", 6, 1, uuid="MIG-again")))
    assert bench.allocator.ctx.cluster.gpus[gpu.report.uuid] is gpu
    pulled(bench, 4, fixed(instance("1g.5gb", 6, 1, unusable="it is used by python 7")))
    assert bench.allocator.ctx.cluster.gpus[gpu.report.uuid] is not gpu


def test_who_waits_is_served_when_the_administrator_has_made_what_he_needs():
    """A pod would wait for ever beside the instance that was made for it."""
    bench = with_node(fixed(instance("1g.5gb", 6, 1)))
    (waiting,) = bench.land_all(bench.request(asked("p1", claim(profile="2g.10gb"))))
    assert isinstance(waiting.message, Pending)
    assert waiting.message.message == "no GPU here has 2g.10gb in its fixed layout. Closest: 1g.5gb (A100-40GB)"
    written = pulled(bench, 2, fixed(instance("2g.10gb", 4, 2), instance("1g.5gb", 6, 1)))
    (grant,) = [write.message for write in written if isinstance(write.message, Grant)]
    assert place(grant) == ("2g.10gb", 4)
