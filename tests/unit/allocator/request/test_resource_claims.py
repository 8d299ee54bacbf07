"""Requests with ResourceClaims: only nodes whose kubelet hands over serve them, and their booking names them."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.explain.status import how_it_stands

CLAIMS = (msg.ResourceClaimRef(uid="c-1", name="sluice-x", requests={"main": "main"}),)
OLD, NEW = "node-a", "node-b"


def node(name: str, *, hands_over: bool, generation: int = 1) -> msg.NodeSnapshot:
    return snapshot(name, (gpu_report(name, 0),), kubelet_hands_over=hands_over, generation=generation)


def bench_of(*nodes: msg.NodeSnapshot, **rules: object) -> Bench:
    bench = working_allocator(SchedulerConfig(**rules))
    for each in nodes:
        bench.add_node(each)
    bench.said.clear()
    return bench


def pod(name: str, *claims, **more: object) -> msg.AllocationRequested:
    return msgspec.structs.replace(asked(name, *claims), resource_claims=CLAIMS, **more)


def grants(writes) -> list[msg.Grant]:
    return [write.message for write in writes if isinstance(write.message, msg.Grant)]


def test_it_waits_for_a_node_that_hands_over_with_a_reason_and_starts_once_one_does():
    """It is not refused: an agent registers with its kubelet when that has restarted, or after an upgrade."""
    bench = bench_of(node(OLD, hands_over=False))

    (write,) = bench.land_all(bench.request(pod("p1")))
    pending = write.message
    standing = how_it_stands(bench.allocator.ctx, RequestId("p1"))

    assert isinstance(pending, msg.Pending)
    assert pending.message == "1 node: their kubelet does not hand over devices by ResourceClaim"
    assert [(each.reason, each.count) for each in pending.reasons] == [(WaitReason.NODE_WITHOUT_HAND_OVER, 1)]
    assert standing.steps[0].filter == "nodes"

    (grant,) = grants(bench.land_all(bench.pull(node(OLD, hands_over=True, generation=2))))
    assert (grant.booking.node, grant.booking.resource_claims) == (OLD, CLAIMS)


def test_a_reservation_and_an_eviction_are_on_a_node_that_hands_over():
    bench = bench_of(node(OLD, hands_over=False), node(NEW, hands_over=True), promise_after_s=1.0)
    old = msgspec.structs.replace(asked("old", claim(profile="7g.40gb")), leeway=msg.Leeway(preemptible=True))
    for each in (old, msgspec.structs.replace(old, name="new", owner="new")):
        (grant,) = grants(bench.land_all(bench.request(each)))
        bench.land_all(bench.ready(grant))

    (write,) = grants(bench.land_all(bench.request(pod("p1", claim(profile="3g.20gb"), priority=9))))

    assert (write.booking.node, write.booking.resource_claims) == (NEW, CLAIMS)
    assert write.evict
    assert [each.split("_")[0] for each in write.after] == ["new"]


@pytest.mark.parametrize("by_claim", [False, True])
def test_requests_with_and_without_claims_do_not_wait_as_one(by_claim):
    """Where the first of a shape has no place, those behind it are not tried: a ticket would do for them."""
    bench = bench_of(node(NEW, hands_over=False))
    bench.observe(
        subjects.host(node(NEW, hands_over=False).node), msg.HostFacts(cpu_cores=8, memory_mib=9000, pods_free=9)
    )
    bench.land_all(bench.request(pod("first")))

    other = pod("other") if by_claim else asked("other")
    found = grants(bench.land_all(bench.request(other)))

    assert [grant.booking.name for grant in found] == ([] if by_claim else ["other"])
