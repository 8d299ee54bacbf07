"""A slice that has failed and is being taken back is not "another place" for which an eviction is given up."""

from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import RunId
from sluice.contracts.messages import EvictionOrdered, Grant, Leeway, Revoke, SliceFailed, Waived
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")


def test_an_eviction_is_not_given_up_for_a_slice_that_failed():
    """The victim's order is out by then: it would be evicted for a place that no pod gets."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig()))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for node in ("node-a", "node-b"):
        bench.add_node(snapshot(node, (gpu_report(node, 0),)))
    low = changed(asked("low", WHOLE), leeway=Leeway(preemptible=True))
    (write,) = bench.land_all(bench.request(low))
    assert isinstance(write.message, Grant)
    bench.land_all(bench.ready(write.message))
    (write,) = bench.land_all(bench.request(asked("high", WHOLE, priority=5)))
    failed = write.message
    assert isinstance(failed, Grant)
    booking = failed.booking
    said = bench.observe(
        subjects.slice_(booking.node, booking.allocation),
        SliceFailed(
            allocation=booking.allocation, request=booking.request, revision=1, error="Unknown", message="out of luck"
        ),
    )

    landed: list[Write] = []
    waiting = [each for each in said if isinstance(each, Write)]
    while waiting:  # two nodes are two guards: the grant is answered before the revoke is
        waiting.sort(key=lambda each: isinstance(each.message, Revoke))
        write = waiting.pop(0)
        landed.append(write)
        waiting += [each for each in bench.land(write) if isinstance(each, Write)]

    told = [type(each.message).__name__ for each in landed]
    grants = [each.message for each in landed if isinstance(each.message, Grant)]
    assert [(grant.booking.name, grant.evict) for grant in grants] == [("high", True)], told
    assert any(isinstance(each.message, EvictionOrdered) for each in landed), told
    assert not any(isinstance(each.message, Waived) for each in landed), told
    assert [each.message.booking.allocation for each in landed if isinstance(each.message, Revoke)] == [
        booking.allocation
    ], told
