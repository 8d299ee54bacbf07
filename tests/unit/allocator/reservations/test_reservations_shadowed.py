"""Promises that would be hidden, miscounted, or come after a job."""

import msgspec
import pytest
from factories.scheduling.allocator import asked, claim, gpu_report, only, snapshot, working_allocator
from factories.scheduling.gangs import grants, tick

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice_allocator.core.config import SchedulerConfig

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
FOREIGN = (msg.InstanceReport(gi_id=7, profile="1g.5gb", start=0, size=1),)


@pytest.mark.parametrize("useless", [0, 1, 2, 3])
def test_a_pod_of_two_gpus_is_promised_them_where_only_tenants_are_in_its_way(useless):
    """`useless` nodes have a free GPU and one with an instance made by hand, which stays for good."""
    bench = working_allocator(SchedulerConfig())
    bench.add_nodes("busy", gpus=2)
    tenants = only(msg.Grant, bench.asks(asked("t0", WHOLE), asked("t1", WHOLE)))
    assert [each.booking.node for each in tenants] == ["busy"] * 2
    for name in (f"useless-{number}" for number in range(useless)):
        bench.add_node(snapshot(name, (gpu_report(name, 0), gpu_report(name, 1, instances=FOREIGN))))
    said = bench.asks(asked("large", TWO)) + tick(bench, 61.0, times=50)
    promised = grants(said)["large"]
    assert promised.booking.node == "busy"
    assert sorted(promised.after) == sorted(each.booking.allocation for each in tenants)


def test_nodes_with_slices_in_quarantine_hide_no_others():
    """No pod waits for a slice that cannot be given back: 'A slice in quarantine is no such tenant' (docs/queue.md)."""
    bench = working_allocator(SchedulerConfig())
    bench.add_nodes("sick-0", "sick-1", gpus=2)
    sick = only(msg.Grant, bench.asks(*(asked(f"s{number}", WHOLE) for number in range(4))))
    one_of = {each.booking.node: each.booking for each in sick}
    for node, booking in one_of.items():
        about = {"allocation": booking.allocation, "request": booking.request}
        word = msg.SliceQuarantined(**about, revision=1, message="stuck")
        bench.words(bench.observe(subjects.slice_(node, booking.allocation), word))
    bench.add_nodes("busy", gpus=2)
    tick(bench, 2.0, times=3)
    said = bench.asks(asked("large", TWO)) + tick(bench, 61.0, times=50)
    assert grants(said)["large"].booking.node == "busy"


@pytest.mark.parametrize("useless", [3, 4, 5])
def test_a_pod_is_promised_a_gpu_of_a_node_that_has_its_cpu(useless):
    """GPUs of a node that has too little CPU with no pod on it hide those of a node that has enough."""
    bench = working_allocator(SchedulerConfig())
    for name, gpus, cores in (("small", useless, 8.0), ("large", 1, 64.0)):
        bench.observe(subjects.host(name), msg.HostFacts(cpu_cores=cores, memory_mib=500_000, pods_free=100))
        bench.add_nodes(name, gpus=gpus)
    for number in range(useless + 1):
        bench.granted(f"t{number}", WHOLE)
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=16_000, memory_mib=1000))
    said = bench.asks(msgspec.structs.replace(asked("pod", WHOLE), host=needs)) + tick(bench, 61.0, times=50)
    assert grants(said)["pod"].booking.node == "large"
