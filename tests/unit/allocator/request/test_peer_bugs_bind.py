"""Known faults of other systems in booking and giving back: one test each that shows they are not ours."""

from collections import Counter

from factories.scheduling.allocator import (
    Bench,
    asked,
    claim,
    gpu_report,
    kinds,
    news_of,
    only,
    restarted,
    snapshot,
    working_allocator,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write, WriteRefused
from sluice.contracts.ids import GpuUuid

WHOLE, SMALL = claim(profile="7g.40gb"), claim(profile="1g.5gb")


def waits(bench: Bench, name: str) -> bool:
    """A pod asks for a small instance, and learns nothing but that it waits."""
    return kinds(bench.asks(asked(name, SMALL))) == [msg.Pending]


def places(grants: list[msg.Grant]) -> list[tuple[GpuUuid, int]]:
    devices = [device for grant in grants for device in grant.booking.devices]
    return [(each.gpu, at) for each in devices for at in range(each.start, each.start + each.size)]


def test_what_is_booked_on_a_gpu_that_is_not_listed_is_booked_when_it_is_there_again(bench):
    """HAMi #2592: an allocation that names an unknown UUID was ignored, and its device given away when it came back."""
    bench.bound("first", WHOLE)
    bench.pull(snapshot("node-a", (), generation=2))
    after = restarted(bench)
    after.pull(snapshot("node-a", (gpu_report("node-a", 0),), generation=3))
    assert waits(after, "second")


def test_a_picture_that_is_out_of_date_books_nothing_twice(bench):
    """InstaSlice #75: at scale the object with all allocations was out of sync, and one place was given twice."""
    other = restarted(bench)
    mine = [each for number in range(7) for each in bench.request(asked(f"mine-{number}", SMALL))]
    ours = only(msg.Grant, bench.settle(mine))
    late = [each for number in range(7) for each in other.request(asked(f"late-{number}", SMALL))]
    stale = [each for each in late if isinstance(each, Write) and isinstance(each.message, msg.Grant)]
    assert len(ours) == 7
    assert set(places(only(msg.Grant, stale))) <= set(places(ours))
    for write in stale:
        other.handle(WriteRefused(write.operation, next(bench.sequence)))
    for entry in ours:
        late = other.reads(entry)
    assert only(msg.Grant, other.words(late)) == []


def test_a_node_is_spoken_for_by_its_newest_agent_alone(bench):
    """FaST-GShare 3.6.10: nothing fenced a daemon that had been replaced; what it said still counted."""
    bench.bound("runs", WHOLE)
    bench.observe(subjects.node("node-a"), news_of(snapshot("node-a", (), agent_run="agent-2")))
    old = snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)), generation=9)
    assert only((msg.Grant, msg.Bound), bench.words(bench.pull(old))) == []
    assert waits(bench, "next")


def test_a_gpu_that_a_pod_holds_is_not_given_to_a_new_one_whatever_is_reported(bench):
    """HAMi #1491: a new pod was put on a card that was occupied, for its usage was read while it looked idle."""
    bench.bound("first", WHOLE)
    bench.pull(snapshot("node-a", (gpu_report("node-a", 0),), generation=2))
    assert waits(bench, "second")
    assert waits(restarted(bench), "third")


def test_a_refused_write_holds_up_nobody_behind_it(bench):
    """HAMi #2214: the lock of a node leaked where a step failed, and the node took no pod until it expired."""
    (mine,) = [each for each in bench.request(asked("one", SMALL)) if isinstance(each, Write)]
    bench.request(asked("two", SMALL))
    foreign = replace(mine.message, booking=replace(mine.message.booking, allocation="other_r9_1", request="other"))
    said = bench.handle(WriteRefused(mine.operation, next(bench.sequence) + 1))
    said += bench.reads(foreign)
    grants = only(msg.Grant, bench.words(said))
    assert sorted(each.booking.name for each in grants) == ["one", "two"]
    booked = places([foreign, *grants])
    assert len(set(booked)) == len(booked)


def test_a_hundred_pods_at_once_on_one_node_are_all_served_at_once():
    """HAMi #1655, #1367, #810: a lock per node let one pod through at a time; 40 pods took 15 to 30 minutes."""
    bench = working_allocator()
    bench.add_nodes("node-a", gpus=16)
    said = [each for number in range(100) for each in bench.request(asked(f"pod-{number}", SMALL))]
    grants = only(msg.Grant, bench.words(said))
    assert len({each.booking.name for each in grants}) == len(grants) == 100
    booked = places(grants)
    assert len(set(booked)) == len(booked)


def test_many_pods_that_go_at_once_leave_nothing_booked(bench):
    """InstaSlice #150, #122: after a mass delete allocations dangled as "deleted", and pods kept their finalizer."""
    grants = [bench.bound(f"pod-{number}", SMALL) for number in range(7)]
    for number in range(7):
        bench.withdraw(f"pod-{number}")
    said = [word for grant in grants for word in bench.words(bench.gone(grant))]
    assert Counter(kinds(said)) == {msg.Closed: 7, msg.Released: 7}
    assert len(bench.allocator.ctx.cluster.booked()) == 0
    bench.granted("next", WHOLE)


def test_a_pod_that_failed_gives_its_slice_back_as_any_other(bench):
    """InstaSlice #94, #87: its finalizer stayed on pods that had failed, or were never scheduled."""
    grant = bench.granted("failed", WHOLE)
    assert kinds(bench.words(bench.ends("failed", cause="its containers have ended"))) == [msg.Revoke]
    assert kinds(bench.words(bench.gone(grant))) == [msg.Closed, msg.Released]


def test_a_workload_that_is_told_twice_has_one_slice(bench):
    """InstaSlice #76: two objects came to be for one workload, each with an allocation of its own."""
    grant = bench.bound("one", SMALL)
    assert bench.asks(asked("one", SMALL)) == []
    after = restarted(bench)
    assert after.asks(asked("one", SMALL)) == []
    assert dict.fromkeys(after.allocator.ctx.cluster.booked()) == {grant.booking.allocation: None}


def test_a_restart_counts_what_runs(bench):
    """FaST-GShare 3.6.8: state was never recovered; usage began at zero while pods ran, and all was given again."""
    bench.bound("runs", WHOLE)
    assert waits(restarted(bench), "next")


def test_a_node_that_does_not_answer_holds_up_no_other(bench):
    """FaST-GShare 3.6.9, 3.6.10: one hung node stopped all scheduling; a silent one was still chosen."""
    bench.add_nodes("node-b")
    stale = snapshot("node-a", (gpu_report("node-a", 0),), generation=2)
    bench.pull(stale, stale=True, stale_message="no answer")
    assert bench.granted("one", WHOLE).booking.node == "node-b"
