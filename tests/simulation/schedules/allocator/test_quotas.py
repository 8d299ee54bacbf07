"""Limits of namespaces: the interleavings that a simpler rule would lose, each played once on purpose."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from factories.words import booking_of
from simulation.harness.search import catches
from simulation.judges.judge import ViolationError
from simulation.judges.preemptions import PREEMPTIBLE, PRIORITY
from simulation.judges.quotas import HEARD_AFTER_S, NO_LIMITS, QuotaSaid
from simulation.plans.pods import Ask
from simulation.planted.allocator.quotas import BOUND_ON_WHAT_IS_KNOWN, NOTHING_TAKEN_BACK
from simulation.schedules.scene import A30_NODE, MIG_NODE, Scene, sliced

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId
from sluice.contracts.reasons import WaitReason

ONE = (1, None, None)
PODS = tuple(f"pod-{number}" for number in range(5))


def limit(scene: Scene, total: tuple[int | None, int | None, int | None]) -> None:
    """An operator publishes what the namespace may have, and every process observes it."""
    say(scene, total)
    scene.wait(1.0)


def waits_for_quota(scene: Scene, name: str) -> bool:
    """Whether a pod waits because of its namespace's limit."""
    said = scene.value(f"sluice.waiting.{scene.request(name)}")
    return isinstance(said, msg.Pending) and said.reasons[0].reason is WaitReason.QUOTA_EXCEEDED


def raise_and_lower(scene: Scene, killed: str = "", step: int = 0) -> None:
    """A limit comes when one pod runs and others ask, is raised, and lowered; who ends counts until it is gone."""
    scene.serve("first", sliced("1g.5gb"), lingers_s=3.0, longest_s=60.0)
    say(scene, ONE)
    scene.wait(HEARD_AFTER_S)  # every process has read it
    if killed:
        scene.kill_after(killed, step)
    for name in PODS:
        scene.pod(name, sliced("1g.5gb"))
    scene.wait(1.0)
    scene.remove("first")
    scene.until(lambda: running(scene) == 1, longest_s=60.0)
    say(scene, (3, None, None))
    scene.until(lambda: running(scene) == 3, longest_s=60.0)
    say(scene, ONE)
    scene.wait(8.0)
    assert running(scene) == 3, "a lowered limit has ended a pod, or served one more"
    say(scene, NO_LIMITS)
    scene.finish(once=lambda: running(scene) == len(PODS), longest_s=60.0)


def say(scene: Scene, total: tuple[int | None, int | None, int | None]) -> None:
    """An operator publishes what the namespace may have; when each process observes it is another matter."""
    scene.world.operator.say(QuotaSaid(scene.world.clockwork.now, "lab", total))


def running(scene: Scene) -> int:
    """How many of those run who have asked since there is a limit."""
    return sum(scene.runs(name) for name in PODS)


BOTH_GRANT = (MIG_NODE, MIG_NODE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 50, 15), pytest.param(range(1, 70), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize(("killed", "allocators"), [("allocator-a", 1), ("allocator-a", 2), ("agent-node-0", 2)])
def test_a_limit_that_comes_late_and_changes_outlives_a_kill_at_any_step(
    killed: str, allocators: int, steps: range
) -> None:
    """Killed in the middle of the n-th event since the requests: the judge counts, and no running pod is ended."""
    for step in steps:
        raise_and_lower(Scene(*BOTH_GRANT, allocators=allocators), killed, step)


@catches(replace(BOUND_ON_WHAT_IS_KNOWN, caught_by=("quota",)))
def test_no_pod_is_bound_before_what_was_written_before_its_grant_is_known() -> None:
    """A limit ends nothing that runs: an allocator that reads late would let one pod too many begin, for good."""
    scene = Scene(MIG_NODE, A30_NODE, allocators=2)
    limit(scene, ONE)
    scene.wait(HEARD_AFTER_S)
    decided = scene.stall("allocator-b", Stream.BOOK)
    asked = scene.stall("allocator-b", Stream.STATE)
    scene.serve("a", sliced("1g.5gb"))
    scene.host("allocator-a").pause()
    granted = scene.landed()
    scene.pod("b", sliced("1g.6gb"))
    scene.wait(0.5)
    scene.let_hear("allocator-b", subjects.request(scene.request("b")).subject)
    scene.until(lambda: any(isinstance(write.message, msg.SliceReady) for write in granted))
    asked()  # what is said of the first pod counts, so it is read after the second was granted
    scene.wait(0.5)
    (grant,) = (write.message for write in granted if isinstance(write.message, msg.Grant))
    assert grant.booking.name == "b"
    assert scene.bound("b") is None
    decided()
    scene.until(lambda: waits_for_quota(scene, "b"))
    scene.host("allocator-a").resume()
    limit(scene, NO_LIMITS)
    scene.finish(once=lambda: scene.runs("b"))


@catches(NOTHING_TAKEN_BACK)
def test_a_victim_counts_until_it_is_gone() -> None:
    """One allocator has read neither its grant nor that for whose place it goes: it grants what will be released."""
    scene = Scene(MIG_NODE, A30_NODE, allocators=2)
    limit(scene, (None, None, 7))
    scene.wait(HEARD_AFTER_S)
    heard = [scene.stall("allocator-b", stream) for stream in (Stream.BOOK, Stream.STATE)]
    whole, half = sliced("7g.40gb"), sliced("4g.20gb")
    scene.serve("goes", Ask((*whole.annotations, (PREEMPTIBLE, "true")), whole.containers, whole.devices))
    scene.lose(lambda _host, write: isinstance(write.message, msg.EvictionOrdered))
    landed = scene.landed()
    scene.pod("service", Ask((*half.annotations, (PRIORITY, "5")), half.containers, half.devices))
    scene.until(lambda: any(isinstance(write.message, msg.Grant) for write in landed))
    scene.pod("late", sliced("1g.6gb"))
    scene.wait(0.5)
    scene.let_hear("allocator-b", subjects.request(scene.request("late")).subject)
    scene.until(lambda: sum(isinstance(write.message, msg.Grant) for write in landed) > 1)
    scene.wait(3.0)
    for hear in heard:
        hear()
    scene.wait(1.0)
    assert scene.runs("goes")
    assert waits_for_quota(scene, "late")
    scene.lose(lambda _host, _write: False)
    scene.finish(once=lambda: scene.runs("service") and scene.runs("late"))


def all_readings_lag(scene: Scene) -> None:
    """For five seconds whatever is read comes from a server that lags."""
    scene.strike("replica lags", lasts_s=5.0)
    lagging = scene.world.broker.lagging
    lagging.answers = lambda: True  # type: ignore[method-assign]


def test_what_was_granted_counts_whatever_a_server_that_lags_shows() -> None:
    """No guard of the node that is granted next covers it; and its source has not said yet what its pod has."""
    scene = Scene(MIG_NODE, A30_NODE)
    limit(scene, ONE)
    scene.wait(HEARD_AFTER_S)
    landed = scene.landed()
    all_readings_lag(scene)
    scene.pod("a", sliced("1g.5gb"))
    scene.pod("b", sliced("1g.6gb"))
    scene.until(lambda: sum(isinstance(write.message, msg.AllocationRequested) for write in landed) == 2)
    scene.host("pod-watcher").pause()
    scene.until(lambda: any(isinstance(write.message, msg.Bound) for write in landed))
    scene.wait(0.3)
    (book,) = (reader for reader in scene.host("allocator-a").readers if reader.stream is Stream.BOOK)
    book.start()
    scene.wait(8.0)
    scene.host("pod-watcher").resume()
    assert sum(isinstance(write.message, msg.Grant) for write in landed) == 1
    limit(scene, NO_LIMITS)
    scene.finish()


def test_a_grant_without_an_answer_counts_until_it_was_read_whatever_a_server_that_lags_shows() -> None:
    """It is refused when it is repeated; and its pod is gone, so its place is not requested any more."""
    scene = Scene(MIG_NODE, A30_NODE)
    limit(scene, ONE)
    scene.wait(HEARD_AFTER_S)
    landed = scene.landed()
    all_readings_lag(scene)
    (book,) = (reader for reader in scene.host("allocator-a").readers if reader.stream is Stream.BOOK)
    book.start()
    scene.wait(0.1)
    scene.world.broker.fate_of = lambda _host, write: "ack lost" if isinstance(write.message, msg.Grant) else None
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: any(isinstance(write.message, msg.Grant) for write in landed))
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.pod("b", sliced("1g.6gb"))
    scene.wait(0.1)
    scene.remove("a")
    scene.until(lambda: scene.runs("b"))
    words = [write.message for write in landed]
    released = next(number for number, each in enumerate(words) if isinstance(each, msg.Released))
    gone = [each for each in words[:released] if isinstance(each, msg.SliceGone)]
    assert gone, "it was released before its slice was gone"
    scene.finish()


@pytest.mark.parametrize("limit_gpus", [3, 2])
def test_the_judge_counts_a_promise_or_the_place_that_was_free_earlier(limit_gpus: int) -> None:
    """A request that was promised a place and got another keeps both for a moment, and has one: the rest is free."""
    scene = Scene(MIG_NODE)
    judge, books = scene.world.limits, scene.world.judge
    judge.landed(_write(subjects.quota("den"), QuotaSaid(0.0, "den", (limit_gpus, None, None)).message), 1)
    scene.wait(HEARD_AFTER_S + 1.0)
    entries = {
        "promise": _grant("waits", "promise", 2, after=(AllocationId("of another namespace"),)),
        "free": _grant("waits", "free", 2),
        "late": _grant("late", "late", 1),
    }
    books.ledger["node-0"] = dict(entries)  # type: ignore[arg-type]
    books.after["promise"] = ("of another namespace",)
    landing = _write(subjects.ledger(NodeName("node-0"), AllocationId("late")), entries["late"])
    with nullcontext() if limit_gpus == 3 else pytest.raises(ViolationError, match="3 of 2 devices"):
        judge.landed(landing, 2)
    assert judge.checks


def _grant(request: str, allocation: str, devices: int, after: tuple[AllocationId, ...] = ()) -> msg.Grant:
    """So many devices on the only node, by the only allocator."""
    device = msg.DeviceGrant(container="main", gpu="GPU-node-0-0", profile="1g.5gb", start=0, size=1)
    booking = booking_of(allocation, "node-0", (device,) * devices, request=request, namespace="den")
    return msg.Grant(revision=1, incarnation=Incarnation("1"), booking=booking, after=after)


def _write(address: subjects.Address, message: msg.AnyMessage) -> Write:
    stream = Stream.BOOK if address.kind == "ledger" else Stream.STATE
    return Write(OperationId("o"), 1, stream, address.subject, address.guard, 0, message, "")
