"""Known faults of other systems in booking and giving back: one test each that shows they are not ours."""

from factories.scheduling.allocator import (
    Bench,
    asked,
    begun_anew,
    claim,
    gpu_report,
    snapshot,
)

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import (
    Bound,
    Grant,
    NodeChanged,
    NodeInventory,
    Pending,
)
from sluice_allocator.core.events import Continue, LeaseChanged

WHOLE, HALF, SMALL = claim(profile="7g.40gb"), claim(profile="3g.20gb"), claim(profile="1g.5gb")


def land_all(bench: Bench, said: list) -> list[Write]:
    landed = bench.land_all(said)
    while bench.allocator.unfinished:
        landed += bench.land_all(bench.handle(Continue()))
    return landed


def words(bench: Bench, said: list) -> list:
    """What is written when everything lands, without waiting words."""
    return [write.message for write in land_all(bench, said) if not isinstance(write.message, Pending)]


def restarted(bench: Bench) -> Bench:
    """Another allocator works, which has read what is on the bus."""
    after = begun_anew(bench, bench.allocator.ctx.rules)
    words(after, after.handle(LeaseChanged(held=True)))
    return after


def places(grants: list[Grant]) -> list[tuple[GpuUuid, int]]:
    devices = [device for grant in grants for device in grant.booking.devices]
    return [(each.gpu, at) for each in devices for at in range(each.start, each.start + each.size)]


def test_what_is_booked_on_a_gpu_that_is_not_listed_is_booked_when_it_is_there_again(bench):
    """HAMi #2592: an allocation that names an unknown UUID was ignored, and its device given away when it came back."""
    bench.bound("first", WHOLE)
    gone = snapshot("node-a", (), generation=2)
    bench.observe(subjects.inventory(gone.node), NodeInventory(snapshot=gone, stale=False))
    after = restarted(bench)
    back = snapshot("node-a", (gpu_report("node-a", 0),), generation=3)
    after.observe(subjects.inventory(back.node), NodeInventory(snapshot=back, stale=False))
    assert words(after, after.request(asked("second", SMALL))) == []


def test_a_picture_that_is_out_of_date_books_nothing_twice(bench):
    """InstaSlice #75: at scale the object with all allocations was out of sync, and one place was given twice."""
    other = restarted(bench)
    mine = [each for number in range(7) for each in bench.request(asked(f"mine-{number}", SMALL))]
    ours = [write for write in land_all(bench, mine) if isinstance(write.message, Grant)]
    late = [each for number in range(7) for each in other.request(asked(f"late-{number}", SMALL))]
    stale = [each for each in late if isinstance(each, Write) and isinstance(each.message, Grant)]
    assert len(ours) == 7
    assert set(places([each.message for each in stale])) <= set(places([each.message for each in ours]))
    for write in stale:
        other.handle(WriteRefused(write.operation, next(bench.sequence)))
    for write in ours:
        entry = write.message
        late = other.observe(subjects.ledger(entry.booking.node, entry.booking.allocation), entry)
    assert [each for each in words(other, late) if isinstance(each, Grant)] == []


def test_a_node_is_spoken_for_by_its_newest_agent_alone(bench):
    """FaST-GShare 3.6.10: nothing fenced a daemon that had been replaced; what it said still counted."""
    bench.bound("runs", WHOLE)
    news = NodeChanged(
        node=snapshot("node-a", ()).node,
        endpoint="127.0.0.1:2",
        boot_id="boot-1",
        agent_run="agent-2",
        generation=1,
        gpus=(),
    )
    bench.observe(subjects.node(news.node), news)
    old = snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)), generation=9)
    said = bench.observe(subjects.inventory(old.node), NodeInventory(snapshot=old, stale=False))
    assert [each for each in words(bench, said) if isinstance(each, (Grant, Bound))] == []
    assert words(bench, bench.request(asked("next", SMALL))) == []
