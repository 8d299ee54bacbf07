"""Nodes on which evictions could never help hide others from a pod of two GPUs (docs/preemption.md: 64 nodes)."""

import pytest
from factories.scheduling.allocator import Bench, all_said, claim, gpu_report, snapshot
from factories.scheduling.gangs import ask, grants, tick
from factories.scheduling.preemption import WHOLE, high, low

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.contracts.messages import HostFacts, HostNeeds, HostRoom
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

TWO = claim(profile="7g.40gb", gpus=2)


@pytest.mark.parametrize("useless", [3, 4, 5])
def test_pods_are_evicted_where_that_helps(useless):
    """Nodes that are too small with no pod on them use up none of the tries: an important pod would wait for ever."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    for name, cores in (*((f"small-{n}", 8.0) for n in range(useless)), ("large", 64.0)):
        bench.observe(subjects.host(name), HostFacts(cpu_cores=cores, memory_mib=500_000, pods_free=100))
        bench.add_node(snapshot(name, (gpu_report(name, 0), gpu_report(name, 1))))
    tenants = grants(ask(bench, *(low(f"t{number}", WHOLE) for number in range(2 * useless + 2))))
    assert len(tenants) == 2 * useless + 2
    for each in tenants.values():
        bench.land_all(bench.ready(each))
    needs = HostNeeds(room=HostRoom(cpu_milli=16_000, memory_mib=1000))
    said = ask(bench, high("pod", TWO, host=needs))
    for _ in range(20):
        said += tick(bench, 10.0)
    granted = grants(said).get("pod")
    assert (granted.booking.node, granted.evict) == ("large", True)
