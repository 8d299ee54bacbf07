"""A pod is evicted for a place that its preemptor will not get: a running pod ends for nothing."""

from collections.abc import Callable

import pytest
from factories.scheduling.allocator import FOLDER, Bench, gpu_report, snapshot
from factories.scheduling.preemption import WHOLE, high, low, run, said, start
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Cordoned, EvictionOrdered, Grant, RequestWithdrawn, Revoke
from sluice_allocator.core.events import Instruction

SERVICE, NODE = RequestId("service"), NodeName("node-a")


def orders(writes: list[Write]) -> list[EvictionOrdered]:
    return [message for message in said(writes) if isinstance(message, EvictionOrdered)]


def gone(bench: Bench) -> list[Instruction]:
    return bench.observe(subjects.request(SERVICE), RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone"))


def edited(bench: Bench) -> list[Instruction]:
    return bench.observe(subjects.request(SERVICE), high("service", WHOLE, revision=2, priority=0))


def cordoned(bench: Bench) -> list[Instruction]:
    return bench.observe(subjects.cordon(NODE), Cordoned(node=NODE, why="new fans"))


def served_elsewhere(bench: Bench) -> list[Instruction]:
    """Another allocator has found a place for it that is free."""
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    (mine,) = (each.message for each in bench.said if isinstance(each, Write) and _is_for_service(each))
    booking = replace(mine.booking, allocation=AllocationId("service_r9_1"), node=NodeName("node-b"))
    booking = replace(booking, devices=(replace(booking.devices[0], gpu="GPU-node-b-0"),))
    theirs = Grant(revision=1, incarnation=mine.incarnation, booking=booking)
    return bench.observe(subjects.ledger(booking.node, booking.allocation), theirs)


def _is_for_service(write: Write) -> bool:
    return isinstance(write.message, Grant) and write.message.booking.request == SERVICE


@pytest.mark.parametrize("change", [gone, edited, cordoned, served_elsewhere], ids=lambda it: it.__name__)
def test_nobody_goes_for_a_place_that_is_of_no_use_any_more_when_its_grant_lands(
    empty: Bench, change: Callable[[Bench], list[Instruction]]
):
    """It is taken back at once, and so was the order: but who reads that one first carries it out."""
    start(empty)
    run(empty, low("batch", WHOLE))
    empty.said.clear()
    (grant,) = (each for each in empty.request(high("service", WHOLE)) if isinstance(each, Write))
    assert isinstance(grant.message, Grant)
    assert grant.message.evict
    written = empty.land_all([*change(empty), grant])
    assert orders(written) == []
    assert [each.after for each in said(written) if isinstance(each, Revoke)] == [grant.message.after]


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
