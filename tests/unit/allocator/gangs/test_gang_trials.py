"""What a trial of several events gives back is not offered to the very group that had found it."""

from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts.bus.events import Ticked
from sluice.contracts.ids import RunId
from sluice.contracts.messages import PodGroup
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged

WHOLE = claim(profile="7g.40gb")
JOB = PodGroup(name="job", size=2)


def test_a_group_that_has_no_place_is_not_tried_again_for_what_its_own_trial_gave_back():
    """Else it is tried for ever, each time it has been in vain, although nothing changes on the fleet."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(group_steps=1)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1))))
    bench.bound("tenant", WHOLE)
    for name in ("j1", "j2"):
        bench.land_all(bench.request(changed(asked(name, WHOLE), group=JOB)))
    before = bench.allocator.ctx.numbered
    for _ in range(60):
        bench.now += 1.0
        bench.land_all(bench.handle(Ticked()))
        for _ in range(200):
            if bench.allocator.unfinished:
                bench.land_all(bench.handle(Continue()))

    tried = bench.allocator.ctx.numbered - before
    assert tried <= 60 / SchedulerConfig().pending_refresh_s + 5, (
        tried
    )  # it is looked at again so that reasons do not grow old
