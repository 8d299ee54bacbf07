"""Who waits is served when a node joins, and when its administrator has made what is asked for."""

from factories.scheduling.allocator import (
    Bench,
    all_said,
    asked,
    begun_anew,
    claim,
    gpu_report,
    snapshot,
    working_allocator,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, RequestId
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged


def said(instructions: list) -> list:
    return [each.message for each in instructions if hasattr(each, "message")]


def test_requests_that_are_read_before_the_inventories_are_served(empty):
    """After the broker was wiped every pod would be refused whose model is in no catalog."""
    profile = replace(gpu_report("node-x", 0).profiles[0], name="3g.55gb")
    unknown = snapshot("node-x", (gpu_report("node-x", 0, model="a30", profiles=(profile,)),))
    waiting = asked("p1", claim(profile="3g.55gb"))
    empty.land_all(empty.read_all(all_said(), (subjects.request(RequestId("p1")), waiting), incarnation=LATER))
    written = [each.message for each in empty.add_node(unknown)]
    assert [each.booking.request for each in written if isinstance(each, msg.Grant)] == ["p1"]


LATER = Incarnation("2000")
OLD = Refusal(
    reason=RefusalReason.UNKNOWN_PROFILE, message="no known GPU model has this profile", field="profile", value="x"
)


def refused(message: msg.AllocationRequested) -> msg.Refused:
    request = RequestId(message.name)
    return msg.Refused(request=request, request_revision=message.revision, refusal=OLD, source=message.source)


def test_what_an_older_version_refused_is_judged_again_and_served(bench):
    """Pods that were refused before an upgrade would stay so for as long as they live."""
    waiting = asked("p1", claim(profile="2g.10gb"))
    bench.observe(subjects.binding(RequestId("p1")), refused(waiting))
    waived, grant = said(bench.land_all(bench.request(waiting)))
    assert isinstance(waived, msg.Waived)
    assert waived.allocations == ()
    assert isinstance(grant, msg.Grant)
    bound = said(bench.land_all(bench.ready(grant)))
    assert [type(each).__name__ for each in bound] == ["Bound"]


def test_what_the_settings_allow_since_is_served(bench):
    """An operator who raised the limit would have to recreate each pod."""
    large = asked("p1", claim(profile=None, gpus=9))
    bench.land_all(bench.request(large))
    assert isinstance(bench.allocator.ctx.facts.bindings[RequestId("p1")], msg.Refused)
    again = begun_anew(bench, SchedulerConfig(max_gpus_per_node=16))
    again.land_all(again.handle(LeaseChanged(held=True)))
    assert isinstance(again.allocator.ctx.facts.bindings[RequestId("p1")], msg.Waived)
    assert RequestId("p1") in again.allocator.ctx.queue


def test_what_is_wrong_in_itself_stays_refused(bench):
    large = asked("p1", claim(profile=None, gpus=9))
    bench.land_all(bench.request(large))
    bench.now += 60
    assert said(bench.land_all(bench.observe(subjects.request(RequestId("p1")), large))) == []
    assert said(bench.tick()) == []


def test_nobody_loses_a_place_over_a_refusal_that_holds_no_more(bench):
    """An allocator that reads the refusal later than the grant would take the slice back."""
    waiting = asked("p1", claim(profile="2g.10gb"))
    bench.observe(subjects.binding(RequestId("p1")), refused(waiting))
    bench.land_all(bench.request(waiting))
    bench.now += 10
    assert not [each for each in said(bench.land_all(bench.tick())) if isinstance(each, msg.Revoke)]


NODE = NodeName("node-a")


def instance(profile: str, start: int, size: int, **changes: object) -> msg.InstanceReport:
    values = {"gi_id": start + 1, "profile": profile, "start": start, "size": size, "uuid": f"MIG-{start}"}
    return msg.InstanceReport(**(values | changes))


def fixed(*instances: msg.InstanceReport) -> msg.GpuReport:
    return gpu_report("node-a", 0, fixed_layout=True, instances=instances)


def with_node(*gpus: msg.GpuReport) -> Bench:
    bench = working_allocator()
    bench.add_node(snapshot("node-a", gpus))
    bench.said.clear()
    return bench


def pulled(bench: Bench, generation: int, *gpus: msg.GpuReport) -> list:
    """The node is pulled again; what is written then, landed."""
    seen = snapshot("node-a", gpus, generation=generation)
    return bench.land_all(bench.pull(seen))


def place(grant: msg.Grant) -> tuple[str | None, int]:
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
    bench = with_node(fixed(instance("1g.5gb", 6, 1)))
    (waiting,) = bench.land_all(bench.request(asked("p1", claim(profile="2g.10gb"))))
    assert isinstance(waiting.message, msg.Pending)
    assert waiting.message.message == "no GPU here has 2g.10gb in its fixed layout. Closest: 1g.5gb (A100-40GB)"
    written = pulled(bench, 2, fixed(instance("2g.10gb", 4, 2), instance("1g.5gb", 6, 1)))
    (grant,) = [write.message for write in written if isinstance(write.message, msg.Grant)]
    assert place(grant) == ("2g.10gb", 4)
