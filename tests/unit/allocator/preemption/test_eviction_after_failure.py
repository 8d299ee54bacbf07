"""Evictions that would be in vain, go on for ever, or hide others."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator
from factories.scheduling.gangs import ask, grants, tick
from factories.scheduling.preemption import WHOLE, high, low, run, said
from msgspec.structs import replace
from msgspec.structs import replace as changed

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice_allocator.core.config import SchedulerConfig


def test_an_eviction_is_not_given_up_for_a_slice_that_failed():
    """The victim's order is out by then: it would be evicted for a place that no pod gets."""
    bench = working_allocator(SchedulerConfig())
    bench.add_nodes("node-a", "node-b")
    low = changed(asked("low", WHOLE), leeway=msg.Leeway(preemptible=True))
    (write,) = bench.land_all(bench.request(low))
    assert isinstance(write.message, msg.Grant)
    bench.land_all(bench.ready(write.message))
    (write,) = bench.land_all(bench.request(asked("high", WHOLE, priority=5)))
    failed = write.message
    assert isinstance(failed, msg.Grant)
    booking = failed.booking
    said = bench.fails(failed)

    landed: list[Write] = []
    waiting = [each for each in said if isinstance(each, Write)]
    while waiting:  # two nodes are two guards: the grant is answered before the revoke is
        waiting.sort(key=lambda each: isinstance(each.message, msg.Revoke))
        write = waiting.pop(0)
        landed.append(write)
        waiting += [each for each in bench.land(write) if isinstance(each, Write)]

    told = [type(each.message).__name__ for each in landed]
    grants = [each.message for each in landed if isinstance(each.message, msg.Grant)]
    assert [(grant.booking.name, grant.evict) for grant in grants] == [("high", True)], told
    assert any(isinstance(each.message, msg.EvictionOrdered) for each in landed), told
    assert not any(isinstance(each.message, msg.Waived) for each in landed), told
    assert [each.message.booking.allocation for each in landed if isinstance(each.message, msg.Revoke)] == [
        booking.allocation
    ], told


SERVICE, NODE = RequestId("service"), NodeName("node-a")


def orders(writes: list[Write]) -> list[msg.EvictionOrdered]:
    return [message for message in said(writes) if isinstance(message, msg.EvictionOrdered)]


def test_a_pod_that_runs_elsewhere_does_not_go_for_a_surplus_slice_of_its(empty: Bench):
    """Two allocators granted it, and a third pod was given the one place before it was read where it is bound."""
    empty.add_nodes("node-a", "node-b")
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


TWO = claim(profile="7g.40gb", gpus=2)


@pytest.mark.parametrize("useless", [3, 4, 5])
def test_pods_are_evicted_where_that_helps(useless):
    """Nodes that are too small with no pod on them use up none of the tries: an important pod would wait for ever."""
    bench = working_allocator(SchedulerConfig())
    for name, cores in (*((f"small-{n}", 8.0) for n in range(useless)), ("large", 64.0)):
        bench.observe(subjects.host(name), msg.HostFacts(cpu_cores=cores, memory_mib=500_000, pods_free=100))
        bench.add_node(snapshot(name, (gpu_report(name, 0), gpu_report(name, 1))))
    tenants = grants(ask(bench, *(low(f"t{number}", WHOLE) for number in range(2 * useless + 2))))
    assert len(tenants) == 2 * useless + 2
    for each in tenants.values():
        bench.land_all(bench.ready(each))
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=16_000, memory_mib=1000))
    said = ask(bench, high("pod", TWO, host=needs))
    said += tick(bench, 10.0, times=20)
    granted = grants(said).get("pod")
    assert (granted.booking.node, granted.evict) == ("large", True)
