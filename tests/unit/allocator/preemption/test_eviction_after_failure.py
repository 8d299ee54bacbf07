"""Evictions that would be in vain, go on for ever, or hide others."""

import pytest
from factories.scheduling.allocator import Bench, claim, only, working_allocator
from factories.scheduling.gangs import grants, tick
from factories.scheduling.preemption import WHOLE, high, low
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice_allocator.core.config import SchedulerConfig


def test_an_eviction_is_not_given_up_for_a_slice_that_failed():
    """The victim's order is out by then: it would be evicted for a place that no pod gets."""
    bench = working_allocator(SchedulerConfig())
    bench.add_nodes("node-a", "node-b")
    bench.run(low("low", WHOLE))
    (failed,) = bench.asks(high("high", WHOLE))
    landed: list[Write] = []
    waiting = [each for each in bench.fails(failed) if isinstance(each, Write)]
    while waiting:  # two nodes are two guards: the grant is answered before the revoke is
        waiting.sort(key=lambda each: isinstance(each.message, msg.Revoke))
        write = waiting.pop(0)
        landed.append(write)
        waiting += [each for each in bench.land(write) if isinstance(each, Write)]
    assert [(grant.booking.name, grant.evict) for grant in only(msg.Grant, landed)] == [("high", True)]
    assert only(msg.EvictionOrdered, landed)
    assert not only(msg.Waived, landed)
    assert [each.booking for each in only(msg.Revoke, landed)] == [failed.booking]


def test_a_pod_that_runs_elsewhere_does_not_go_for_a_surplus_slice_of_its(empty: Bench):
    """Two allocators granted it, and a third pod was given the one place before it was read where it is bound."""
    empty.add_nodes("node-a", "node-b")
    runs = empty.run(low("batch", WHOLE))
    other = NodeName("node-b" if runs.booking.node == "node-a" else "node-a")
    devices = (replace(runs.booking.devices[0], gpu=f"GPU-{other}-0"),)
    booking = replace(runs.booking, allocation=AllocationId("batch_r9_1"), node=other, devices=devices)
    service = {"request": RequestId("service"), "owner": "s", "name": "service"}
    important = replace(booking, allocation=AllocationId("service_r9_2"), **service)
    surplus = replace(runs, booking=booking)
    promise = replace(runs, booking=important, after=(booking.allocation,), evict=True)
    assert only(msg.EvictionOrdered, [*empty.reads(surplus), *empty.reads(promise)]) == []


@pytest.mark.parametrize("useless", [3, 4, 5])
def test_pods_are_evicted_where_that_helps(useless):
    """Nodes that are too small with no pod on them use up none of the tries: an important pod would wait for ever."""
    bench = working_allocator(SchedulerConfig())
    for name, cores in (*((f"small-{n}", 8.0) for n in range(useless)), ("large", 64.0)):
        bench.observe(subjects.host(name), msg.HostFacts(cpu_cores=cores, memory_mib=500_000, pods_free=100))
        bench.add_nodes(name, gpus=2)
    for number in range(2 * useless + 2):
        bench.run(low(f"t{number}", WHOLE))
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=16_000, memory_mib=1000))
    said = bench.asks(high("pod", claim(profile="7g.40gb", gpus=2), host=needs)) + tick(bench, 10.0, times=20)
    granted = grants(said)["pod"]
    assert (granted.booking.node, granted.evict) == ("large", True)
