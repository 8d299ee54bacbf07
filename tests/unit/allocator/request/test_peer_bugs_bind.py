"""Known faults of other systems in booking and giving back: one test each that shows they are not ours."""

import msgspec
from factories.scheduling.allocator import (
    FOLDER,
    Bench,
    asked,
    begun_anew,
    claim,
    gpu_report,
    snapshot,
)

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import GpuUuid, RequestId
from sluice.contracts.messages import (
    Bound,
    Closed,
    Grant,
    NodeChanged,
    NodeInventory,
    Pending,
    Released,
    RequestWithdrawn,
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


def withdrawn(bench: Bench, name: str) -> list:
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    return words(bench, bench.observe(subjects.request(RequestId(name)), gone))


def restarted(bench: Bench) -> Bench:
    """Another allocator works, which has read what is on the bus."""
    after = begun_anew(bench, bench.allocator.ctx.rules)
    words(after, after.handle(LeaseChanged(held=True)))
    return after


def places(grants: list[Grant]) -> list[tuple[GpuUuid, int]]:
    devices = [device for grant in grants for device in grant.booking.devices]
    return [(each.gpu, at) for each in devices for at in range(each.start, each.start + each.size)]


def test_a_gpu_that_a_pod_holds_is_not_given_to_a_new_one_whatever_is_reported(bench):
    """HAMi #1491: a new pod was put on a card that was occupied, for its usage was read while it looked idle."""
    bench.bound("first", WHOLE)
    empty = snapshot("node-a", (gpu_report("node-a", 0),), generation=2)
    bench.observe(subjects.inventory(empty.node), NodeInventory(snapshot=empty, stale=False))
    assert words(bench, bench.request(asked("second", SMALL))) == []
    assert words(restarted(bench), bench.request(asked("third", SMALL))) == []


def test_what_is_booked_on_a_gpu_that_is_not_listed_is_booked_when_it_is_there_again(bench):
    """HAMi #2592: an allocation that names an unknown UUID was ignored, and its device given away when it came back."""
    bench.bound("first", WHOLE)
    gone = snapshot("node-a", (), generation=2)
    bench.observe(subjects.inventory(gone.node), NodeInventory(snapshot=gone, stale=False))
    after = restarted(bench)
    back = snapshot("node-a", (gpu_report("node-a", 0),), generation=3)
    after.observe(subjects.inventory(back.node), NodeInventory(snapshot=back, stale=False))
    assert words(after, after.request(asked("second", SMALL))) == []


def test_a_refused_write_holds_up_nobody_behind_it(bench):
    """HAMi #2214: the lock of a node leaked where a step failed, and the node took no pod until it expired."""
    (mine,) = [each for each in bench.request(asked("one", SMALL)) if isinstance(each, Write)]
    bench.request(asked("two", SMALL))
    foreign = msgspec.structs.replace(
        mine.message, booking=msgspec.structs.replace(mine.message.booking, allocation="other_r9_1", request="other")
    )
    sequence = next(bench.sequence)
    said = bench.handle(WriteRefused(mine.operation, sequence + 1))
    said += bench.observe(subjects.ledger(foreign.booking.node, foreign.booking.allocation), foreign)
    grants = [each for each in words(bench, said) if isinstance(each, Grant)]
    assert sorted(each.booking.name for each in grants) == ["one", "two"]
    booked = places([foreign, *grants])
    assert len(set(booked)) == len(booked)


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


def test_many_pods_that_go_at_once_leave_nothing_booked(bench):
    """InstaSlice #150, #122: after a mass delete allocations dangled as "deleted", and pods kept their finalizer."""
    grants = [bench.bound(f"pod-{number}", SMALL) for number in range(7)]
    for number in range(7):
        withdrawn(bench, f"pod-{number}")
    said = [word for grant in grants for word in words(bench, bench.gone(grant))]
    assert sorted(type(each).__name__ for each in said) == ["Closed"] * 7 + ["Released"] * 7
    assert {type(each) for each in said} == {Closed, Released}
    assert len(bench.allocator.ctx.cluster.booked()) == 0
    assert isinstance(bench.granted("next", WHOLE), Grant)


def test_a_workload_that_is_told_twice_has_one_slice(bench):
    """InstaSlice #76: two objects came to be for one workload, each with an allocation of its own."""
    grant = bench.bound("one", SMALL)
    again = asked("one", SMALL)
    assert words(bench, bench.request(again)) == []
    after = restarted(bench)
    assert words(after, after.request(again)) == []
    assert dict.fromkeys(after.allocator.ctx.cluster.booked()) == {grant.booking.allocation: None}


def test_a_node_that_does_not_answer_holds_up_no_other(bench):
    """FaST-GShare 3.6.9, 3.6.10: one hung node stopped all scheduling; one that is not heard of was still chosen."""
    bench.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    stale = snapshot("node-a", (gpu_report("node-a", 0),), generation=2)
    bench.observe(subjects.inventory(stale.node), NodeInventory(snapshot=stale, stale=True, stale_message="no answer"))
    (grant,) = words(bench, bench.request(asked("one", WHOLE)))
    assert grant.booking.node == "node-b"


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
