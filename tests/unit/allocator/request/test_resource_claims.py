"""Requests with ResourceClaims: only nodes whose kubelet hands over serve them, and their booking names them."""

import msgspec
import pytest
from factories.scheduling.allocator import Bench, asked, gpu_report, only, snapshot, working_allocator
from factories.scheduling.preemption import HALF, WHOLE, low, promise_for

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
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


def test_it_waits_for_a_node_that_hands_over_with_a_reason_and_starts_once_one_does():
    """It is not refused: an agent registers with its kubelet when that has restarted, or after an upgrade."""
    bench = bench_of(node(OLD, hands_over=False))
    (pending,) = bench.asks(pod("p1"))
    assert pending.message == "1 node: their kubelet does not hand over devices by ResourceClaim"
    assert [(each.reason, each.count) for each in pending.reasons] == [(WaitReason.NODE_WITHOUT_HAND_OVER, 1)]
    assert how_it_stands(bench.allocator.ctx, RequestId("p1")).steps[0].filter == "nodes"
    (grant,) = only(msg.Grant, bench.words(bench.pull(node(OLD, hands_over=True, generation=2))))
    assert (grant.booking.node, grant.booking.resource_claims) == (OLD, CLAIMS)


def test_a_reservation_and_an_eviction_are_on_a_node_that_hands_over():
    bench = bench_of(node(OLD, hands_over=False), node(NEW, hands_over=True), promise_after_s=1.0)
    for name in ("old", "new"):
        bench.run(low(name, WHOLE))
    promise = promise_for(bench, pod("p1", HALF, priority=9))
    assert (promise.booking.node, promise.booking.resource_claims) == (NEW, CLAIMS)
    assert [each.split("_")[0] for each in promise.after] == ["new"]


@pytest.mark.parametrize("by_claim", [False, True])
def test_requests_with_and_without_claims_do_not_wait_as_one(by_claim):
    """Where the first of a shape has no place, those behind it are not tried: a ticket would do for them."""
    bench = bench_of(node(NEW, hands_over=False))
    bench.observe(subjects.host(NodeName(NEW)), msg.HostFacts(cpu_cores=8, memory_mib=9000, pods_free=9))
    bench.asks(pod("first"))
    found = only(msg.Grant, bench.asks(pod("other") if by_claim else asked("other")))
    assert [grant.booking.name for grant in found] == ([] if by_claim else ["other"])
