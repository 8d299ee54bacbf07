"""Promises that would be hidden, miscounted, or come after a job."""

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, Bench, all_said, asked, claim, gpu_report, snapshot
from factories.scheduling.gangs import ask, everything, grants, tick
from msgspec.structs import replace as changed

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write, WriteAccepted
from sluice.contracts.ids import RequestId, RunId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
FOREIGN = (msg.InstanceReport(gi_id=7, profile="1g.5gb", start=0, size=1),)


@pytest.mark.parametrize("useless", [0, 1, 2, 3])
def test_a_pod_of_two_gpus_is_promised_them_where_only_tenants_are_in_its_way(useless):
    """`useless` nodes have a free GPU and one with an instance that somebody made by hand; it stays for good."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("busy", (gpu_report("busy", 0), gpu_report("busy", 1))))
    tenants = grants(ask(bench, asked("t0", WHOLE), asked("t1", WHOLE)))
    assert {each.booking.node for each in tenants.values()} == {"busy"}
    for number in range(useless):
        name = f"useless-{number}"
        bench.add_node(snapshot(name, (gpu_report(name, 0), gpu_report(name, 1, instances=FOREIGN))))
    said = ask(bench, asked("large", TWO))
    for _ in range(50):
        said += tick(bench, 61.0)
    promised = grants(said).get("large")
    assert promised.booking.node == "busy"
    assert sorted(promised.after) == sorted(each.booking.allocation for each in tenants.values())


def test_nodes_with_slices_in_quarantine_hide_no_others():
    """No pod waits for a slice that cannot be given back: 'A slice in quarantine is no such tenant' (docs/queue.md)."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    names = ("sick-0", "sick-1")
    for name in names:
        bench.add_node(snapshot(name, (gpu_report(name, 0), gpu_report(name, 1))))
    sick = {}
    for number in range(4):
        sick |= grants(ask(bench, asked(f"s{number}", WHOLE)))
    one_of = {each.booking.node: each for each in sick.values()}
    for each in one_of.values():
        word = msg.SliceQuarantined(
            allocation=each.booking.allocation, request=each.booking.request, revision=1, message="stuck"
        )
        everything(bench, bench.observe(subjects.slice_(each.booking.node, each.booking.allocation), word))
    bench.add_node(snapshot("busy", (gpu_report("busy", 0), gpu_report("busy", 1))))
    for _ in range(3):
        tick(bench, 2.0)
    said = ask(bench, asked("large", TWO))
    for _ in range(50):
        said += tick(bench, 61.0)
    promised = grants(said).get("large")
    assert promised.booking.node == "busy"


@pytest.mark.parametrize("useless", [3, 4, 5])
def test_a_pod_is_promised_a_gpu_of_a_node_that_has_its_cpu(useless):
    """GPUs of a node that has too little CPU with no pod on it hide those of a node that has enough."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    for name, gpus, cores in (("small", useless, 8.0), ("large", 1, 64.0)):
        bench.observe(subjects.host(name), msg.HostFacts(cpu_cores=cores, memory_mib=500_000, pods_free=100))
        bench.add_node(snapshot(name, tuple(gpu_report(name, index) for index in range(gpus))))
    tenants = grants(ask(bench, *(asked(f"t{number}", WHOLE) for number in range(useless + 1))))
    assert len(tenants) == useless + 1
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=16_000, memory_mib=1000))
    said = ask(bench, msgspec.structs.replace(asked("pod", WHOLE), host=needs))
    for _ in range(50):
        said += tick(bench, 61.0)
    promised = grants(said).get("pod")
    assert promised.booking.node == "large"


AFTER_S = 300.0


def test_a_promise_that_was_ended_before_its_write_was_answered_is_not_counted_any_more():
    """Else the place that it had in the limit of promises is never free again, and no pod is promised anything."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=AFTER_S)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    bench.bound("p1", WHOLE)
    bench.land_all(bench.request(asked("big", WHOLE)))
    bench.now += AFTER_S
    (write,) = [w for w in bench.handle(Ticked()) if isinstance(w, Write) and isinstance(w.message, msg.Grant)]
    promise = write.message
    assert isinstance(promise, msg.Grant)
    assert promise.after

    landed_at = next(bench.sequence)  # the answer is on its way while the other allocator reads it, and ends it
    booking = promise.booking
    address = subjects.ledger(booking.node, booking.allocation)
    revoke = msg.Revoke(
        revision=2,
        incarnation=promise.incarnation,
        booking=booking,
        cause="an earlier place is reserved for it",
        after=promise.after,
    )
    said = bench.observe(address, revoke)
    said += bench.handle(WriteAccepted(write.operation, landed_at))
    said += bench.gone(promise)
    closed = msg.Closed(
        revision=2, allocation=booking.allocation, request=booking.request, node=booking.node, cause="promised before"
    )
    said += bench.observe(address, closed)
    bench.land_all(said)

    assert not bench.allocator.ctx.promised.of_model
    granted: list[msg.Grant] = []
    for _ in range(1200):  # retries of promises double up to eight minutes
        bench.now += 1.0
        granted += [w.message for w in bench.land_all(bench.handle(Ticked())) if isinstance(w.message, msg.Grant)]
    assert [(grant.booking.name, bool(grant.after)) for grant in granted] == [("big", True)]


JOB = msg.PodGroup(name="job", size=2)


def of_job(name: str, priority: int = 0) -> msg.AllocationRequested:
    return changed(asked(name, WHOLE, priority=priority), group=JOB)


def granted(writes: list[Write]) -> list[msg.Grant]:
    return [each.message for each in writes if isinstance(each.message, msg.Grant)]


@pytest.fixture
def retried() -> Bench:
    """Two GPUs: of a job of two one runs, and one is made again and waits; a pod that may be evicted has its place."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=AFTER_S)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1))))
    bench.request(of_job("j1"))
    one, two = granted(bench.land_all(bench.request(of_job("j2"))))
    for grant in (one, two):
        bench.land_all(bench.ready(grant))
    bench.land_all(
        bench.observe(
            subjects.request(RequestId(two.booking.name)),
            msg.RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone"),
        )
    )
    bench.land_all(bench.gone(two))
    tenant = changed(asked("tenant", WHOLE), leeway=msg.Leeway(preemptible=True))
    for grant in granted(bench.land_all(bench.request(tenant))):
        bench.land_all(bench.ready(grant))
    return bench


def test_who_waits_behind_a_pod_of_a_job_is_promised_a_place(retried: Bench):
    """Else it waits for ever: the first of its shape is one who is promised nothing."""
    retried.land_all(retried.request(of_job("j3")))
    retried.land_all(retried.request(asked("single", WHOLE)))
    found: list[msg.Grant] = []
    for _ in range(3):
        retried.now += AFTER_S
        found += granted(retried.land_all(retried.handle(Ticked())))

    assert [(grant.booking.name, bool(grant.after)) for grant in found] == [("single", True)]
