"""What is counted of decisions and phases: true for those who tune a fleet, and no burden for the core."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, report_of, snapshot
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream, Write, stream_of
from sluice.contracts.ids import Incarnation, NodeName, RequestId
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.shell import decision_counter as measuring
from sluice_allocator.shell.decision_counter import DecisionCounter
from sluice_allocator.shell.metrics import DECISIONS, PHASE_SECONDS, AllocatorMetrics, leaked_slices

NODE = NodeName("node-a")


@pytest.fixture
def counts(monkeypatch):
    own = MetricRegistry()
    monkeypatch.setattr(metrics, "count", own.count)
    monkeypatch.setattr(metrics, "observe", own.observe)
    return own


@pytest.fixture
def measured(bench, counts):
    core = bench.allocator
    wrapped = DecisionCounter(core)
    bench.allocator = wrapped
    yield bench
    bench.allocator = core


def phases(counts) -> dict[str, tuple[int, float]]:
    """Per phase, how often it was seen, and how long it took in all."""
    series = counts.histograms().get(PHASE_SECONDS, {})
    return {labels[0]: (sum(spread.counts), spread.total) for labels, spread in series.items()}


def served(bench, name: str) -> msg.Grant:
    """A request, from its message to `Bound`: 1 s, 2 s and 4 s apart."""
    bench.now += 100
    (write,) = bench.land_all(bench.request(asked(name, claim(profile="1g.5gb"))))
    grant = write.message
    bench.now += 1
    bench.observe(subjects.ledger(NODE, grant.booking.allocation), grant, write.operation)
    bench.now += 2
    (bound,) = bench.land_all(bench.ready(grant))
    bench.now += 4
    bench.observe(subjects.binding(RequestId(name)), bound.message, bound.operation)
    return grant


def test_each_phase_of_the_way_there_and_back_is_told_apart(measured, counts):
    """It would be unknown whether pods wait for a place, for the device, or for us."""
    grant = served(measured, "first")
    assert phases(counts) == {"place": (1, 1.0), "make": (1, 2.0), "bind": (1, 4.0), "serve": (1, 7.0)}
    (revoke,) = measured.land_all(measured.ends("first"))
    measured.now += 8
    measured.observe(subjects.ledger(NODE, grant.booking.allocation), revoke.message, revoke.operation)
    measured.now += 16
    measured.gone(grant)
    measured.now += 32
    measured.observe(subjects.binding(RequestId("first")), msg.Released(request=RequestId("first"), cause="pod gone"))
    back = {name: value for name, value in phases(counts).items() if name not in {"place", "make", "bind", "serve"}}
    assert back == {"revoke": (1, 8.0), "unmake": (1, 16.0), "release": (1, 32.0), "give_back": (1, 56.0)}


def test_decisions_are_counted_by_what_came_of_them_and_why(measured, counts):
    """Refusals that pile up would be seen by their users first."""
    served(measured, "first")
    measured.land_all(measured.request(asked("large", claim(profile="7g.40gb"))))
    measured.land_all(measured.request(asked("never", claim(gpus=57))))
    series = counts.samples()[DECISIONS]
    assert series["granted", "none"] == 1
    assert {labels[0] for labels in series} == {"granted", "waits", "refused"}
    assert all(labels[1] not in {"", "none"} for labels in series if labels[0] != "granted")


def test_what_is_read_again_is_no_present(measured, counts):
    """After each lost connection the fleet would look as if everything had just taken no time, or hours."""
    measured.handle(ReadingStarted(Stream.STATE, Incarnation("1000")))
    measured.observe(subjects.request(RequestId("old")), asked("old", claim(profile="1g.5gb")))
    measured.handle(ReadingCaughtUp(Stream.STATE))
    assert phases(counts) == {}


def read_anew(bench, entries, *, incarnation: str = "1000", said_meanwhile=()) -> None:
    """Both streams are read from the start; `said_meanwhile` is said before the readings have caught up."""
    for stream in (Stream.BOOK, Stream.STATE):
        bench.handle(ReadingStarted(stream, Incarnation(incarnation)))
    for entry in (*entries, *said_meanwhile):
        bench.handle(Observed(stream_of(entry.subject.split(".")[1]), entry))
    for stream in (Stream.BOOK, Stream.STATE):
        bench.handle(ReadingCaughtUp(stream))


@pytest.fixture
def said(monkeypatch):
    """The last values there are, as a reading returns them."""
    values = {}
    handle = Bench.handle

    def kept(bench, event):
        if isinstance(event, Observed):
            values[event.entry.subject] = event.entry
        return handle(bench, event)

    monkeypatch.setattr(Bench, "handle", kept)
    return values


def slow(bench) -> Write:
    """A pod that asks: its grant, which is not read back yet."""
    bench.now += 100
    (write,) = bench.land_all(bench.request(asked("slow")))
    return write


def test_a_pod_that_waits_longer_than_a_reading_lasts_is_counted(said, measured, counts):
    """Streams are reread every five minutes: of all waits only the short ones would be shown."""
    write = slow(measured)
    for _ in range(3):
        measured.now += 300
        read_anew(measured, tuple(said.values()))
    measured.observe(subjects.parse(write.subject), write.message, write.operation)
    measured.now += 300
    read_anew(measured, tuple(said.values()))
    measured.now += 2
    measured.ready(write.message)
    assert phases(counts) == {"place": (1, 900.0), "make": (1, 302.0)}


def test_what_was_said_during_a_reading_is_not_timed(said, measured, counts):
    """A bus that was away for an hour would make every slice take an hour."""
    write = slow(measured)
    granted = Entry(write.subject, next(measured.sequence), write.operation, write.message)
    measured.now += 3600
    read_anew(measured, tuple(said.values()), said_meanwhile=(granted,))
    measured.now += 2
    measured.ready(write.message)
    assert phases(counts) == {}


def test_what_another_life_of_the_bus_told_is_not_timed(said, measured, counts):
    """After a wipe every process publishes again, and none of it is new."""
    write = slow(measured)
    read_anew(measured, tuple(said.values()))
    read_anew(measured, (), incarnation="2000")
    measured.now += 50
    measured.observe(subjects.parse(write.subject), write.message, write.operation)
    assert phases(counts) == {}


def test_an_allocator_that_stands_by_counts_no_phase(measured, counts):
    measured.handle(LeaseChanged(held=False))
    measured.observe(subjects.request(RequestId("r")), asked("r", claim(profile="1g.5gb")))
    measured.observe(subjects.binding(RequestId("r")), msg.Released(request=RequestId("r"), cause="x"))
    assert phases(counts) == {}


def test_what_is_remembered_of_requests_on_their_way_has_a_limit(measured, counts, monkeypatch):
    """A hundred thousand pods that wait for days would fill the memory twice."""
    monkeypatch.setattr(measuring, "FOLLOWED_MAX", 2)
    for name in ("a", "b", "c"):
        measured.request(asked(name, claim(profile="1g.5gb")))
    assert len(measured.allocator._followed) == 2


def test_who_scales_the_fleet_sees_what_is_waited_for_by_model_and_profile(bench):
    bench.bound("first", claim(profile="7g.40gb"))
    for name, claims in {
        "one": (claim(profile="3g.20gb", gpus=2),),
        "two": (claim(profile="3g.20gb", gpus=2),),
        "four": (claim(profile="1g.5gb"), claim(container="b", profile="2g.10gb")),
        "whole": (claim(profile=None),),
        "memory": (claim(profile=None, memory_mib=4000, only=msg.DeviceFilter(models=("A100-SXM4-40GB",))),),
    }.items():
        bench.land_all(bench.request(asked(name, *claims)))
    assert series(bench, "sluice_pending_devices") == {
        ("a100-40gb", "3g.20gb"): 4,
        ("a100-40gb", "1g.5gb"): 1,
        ("a100-40gb", "2g.10gb"): 1,
        ("any", "whole"): 1,
        ("a100-40gb", "any"): 1,
    }


def test_a_slice_that_the_ledger_does_not_know_is_a_leak(bench):
    grant = bench.bound("first", claim(profile="3g.20gb"))
    world = bench.allocator.ctx.facts
    snapshot = world.inventories[NODE].snapshot
    report = report_of(grant.booking)
    stray = report_of(replace(grant.booking, allocation="stray", request="stray"))
    bench.pull(replace(snapshot, generation=2, slices=(report,)))
    assert leaked_slices(world) == 0
    leaking = replace(snapshot, generation=3, slices=(report, stray))
    bench.pull(leaking)
    assert leaked_slices(world) == 1
    bench.pull(leaking, stale=True)
    assert leaked_slices(world) == 0


def shown(bench) -> dict[str, dict[tuple[str, ...], float]]:
    """What is shown of each metric, by its labels."""
    counts = MetricRegistry()
    with counts.collecting_from(AllocatorMetrics(bench.allocator).now):
        return {metric.name: dict(found) for metric, found in counts.samples().items()}


def series(bench, name: str) -> dict[tuple[str, ...], float]:
    return shown(bench)[name]


def test_who_watches_sees_who_waits_for_what_and_how_long(bench):
    """A queue that stands still is seen before its users call: by mode, profile and reason, and for how long."""
    bench.bound("first", claim(profile="7g.40gb"))
    for name in ("second", "third"):
        (told,) = bench.land_all(bench.request(asked(name, claim(profile="7g.40gb"))))
        bench.observe(subjects.waiting(RequestId(name)), told.message, told.operation)
    bench.now += 100.0
    kind = ("exclusive", "7g.40gb")
    assert {name: found for name, found in shown(bench).items() if name.startswith("sluice_queue")} == {
        "sluice_queue_requests": {kind: 2},
        "sluice_queue_first_waits_seconds": {kind: 0},  # no event has carried the time to it
        "sluice_queue_outside": {(): 0},
    }
    requests = {"asked": 3, "bound": 1, "refused": 0, "rejected": 0, "waiting": 2}
    assert series(bench, "sluice_requests") == {(state,): count for state, count in requests.items()}
    assert sum(series(bench, "sluice_requests_waiting").values()) == 2
    assert series(bench, "sluice_ledger_entries")["Grant",] == 1
    assert series(bench, "sluice_slices")["ready",] == 1
    bench.handle(LeaseChanged(held=True))
    assert series(bench, "sluice_queue_first_waits_seconds") == {kind: 100.0}


def test_a_node_that_may_not_be_used_is_not_counted_as_open(bench):
    """Stale and removed nodes are seen as such, and an allocator that stands by does not say that it works."""
    nodes = {"open": 1, "unopened": 0, "stale": 0, "removed": 0, "cordoned": 0}
    assert series(bench, "sluice_nodes") == {(state,): count for state, count in nodes.items()}
    bench.pull(snapshot("node-a", ()), stale=True)
    found = series(bench, "sluice_nodes")
    assert (found["open",], found["stale",]) == (0, 1)
    assert series(bench, "sluice_allocator_works") == {(): 1}
    bench.handle(LeaseChanged(held=False))
    assert series(bench, "sluice_allocator_works") == {(): 0}
