"""Who waits for the same as a pod of a job that runs is promised a place, and evicts, as if that one were not there."""

import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import AllocationRequested, Grant, Leeway, PodGroup, RequestWithdrawn
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
AFTER_S = 300.0
JOB = PodGroup(name="job", size=2)


def of_job(name: str, priority: int = 0) -> AllocationRequested:
    return changed(asked(name, WHOLE, priority=priority), group=JOB)


def granted(writes: list[Write]) -> list[Grant]:
    return [each.message for each in writes if isinstance(each.message, Grant)]


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
            subjects.request(RequestId(two.booking.name)), RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
        )
    )
    bench.land_all(bench.gone(two))
    tenant = changed(asked("tenant", WHOLE), leeway=Leeway(preemptible=True))
    for grant in granted(bench.land_all(bench.request(tenant))):
        bench.land_all(bench.ready(grant))
    return bench


def test_who_waits_behind_a_pod_of_a_job_is_promised_a_place(retried: Bench):
    """Else it waits for ever: the first of its shape is one who is promised nothing."""
    retried.land_all(retried.request(of_job("j3")))
    retried.land_all(retried.request(asked("single", WHOLE)))
    found: list[Grant] = []
    for _ in range(3):
        retried.now += AFTER_S
        found += granted(retried.land_all(retried.handle(Ticked())))

    assert [(grant.booking.name, bool(grant.after)) for grant in found] == [("single", True)]
