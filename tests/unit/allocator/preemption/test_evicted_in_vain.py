"""A pod is evicted for a place that its preemptor will not get: a running pod ends for nothing."""

from factories.scheduling.allocator import Bench, gpu_report, snapshot
from factories.scheduling.preemption import WHOLE, low, run, said
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import EvictionOrdered

SERVICE, NODE = RequestId("service"), NodeName("node-a")


def orders(writes: list[Write]) -> list[EvictionOrdered]:
    return [message for message in said(writes) if isinstance(message, EvictionOrdered)]


def test_a_pod_that_runs_elsewhere_does_not_go_for_a_surplus_slice_of_its(empty: Bench):
    """Two allocators granted it, and a third pod was given the one place before it was read where it is bound."""
    for name in ("node-a", "node-b"):
        empty.add_node(snapshot(name, (gpu_report(name, 0),)))
    runs = run(empty, low("batch", WHOLE))
    other = NodeName("node-b" if runs.booking.node == "node-a" else "node-a")
    devices = (replace(runs.booking.devices[0], gpu=f"GPU-{other}-0"),)
    booking = replace(runs.booking, allocation=AllocationId("batch_r9_1"), node=other, devices=devices)
    important = replace(booking, allocation=AllocationId("service_r9_2"), request=SERVICE, owner="s", name="service")
    surplus = replace(runs, booking=booking)
    promise = replace(runs, booking=important, after=(booking.allocation,), evict=True)
    written = []
    for grant in (surplus, promise):
        address = subjects.ledger(other, grant.booking.allocation)
        written += empty.observe(address, grant)
    assert orders([each for each in written if isinstance(each, Write)]) == []
