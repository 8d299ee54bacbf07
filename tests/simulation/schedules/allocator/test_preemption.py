"""Evictions for a place: the interleavings that a simpler rule would lose, each played once on purpose."""

from contextlib import nullcontext

import msgspec
import pytest
from factories.words import booking_of, write_of
from simulation.harness.search import catches
from simulation.judges.judge import ViolationError
from simulation.judges.preemptions import PREEMPTIBLE, PRIORITY
from simulation.judges.quotas import QuotaSaid
from simulation.plans.pods import Ask
from simulation.planted.allocator.preemptions import counted_on_twice, promised_is_had
from simulation.schedules.scene import A30_NODE, MIG_NODE, Scene, sliced

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, Stream, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId
from sluice.contracts.messages import Amounts, DeviceGrant, Grant, Pending, QuotaSet, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.state.context import Unsent

VICTIMS = ("left", "right")
RAISED_AT = 20.0


def ranked(profile: str, priority: int, *, preemptible: bool = False) -> Ask:
    ask = sliced(profile)
    more = ((PRIORITY, str(priority)), *(((PREEMPTIBLE, "true"),) if preemptible else ()))
    return Ask((*ask.annotations, *more), ask.containers, ask.devices)


def guaranteed_one() -> Scene:
    """A namespace that is guaranteed one device has two: one on each node, of which one may be evicted."""
    quotas = (QuotaSaid(0.0, "den", guaranteed=(1, None, None)),)
    scene = Scene(MIG_NODE, A30_NODE, quotas=quotas, folder_evicts=True)
    scene.pod("goes", ranked("7g.40gb", 0, preemptible=True), namespace="den")
    scene.pod("stays", ranked("1g.6gb", 0), namespace="den")
    scene.until(lambda: scene.runs("goes") and scene.runs("stays"))
    return scene


def two_have_to_go(**how) -> Scene:
    scene = Scene(MIG_NODE, folder_evicts=True, **how)
    scene.serve_all(VICTIMS, ranked("3g.20gb", 0, preemptible=True), lingers_s=0.5, longest_s=60.0)
    return scene


def play(scene: Scene, longest_s: float = 60.0) -> None:
    """Both go, once; the place is the important one's, who ever asks for what the first frees; then they run again."""
    scene.pod("service", ranked("7g.40gb", 5))
    scene.wait(0.3)
    scene.pod("late", ranked("1g.5gb", 0))
    scene.until(lambda: scene.runs("service"), longest_s)
    names = [asked.name for asked in scene.world.judge.requests.values()]
    assert [names.count(name) for name in VICTIMS] == [2, 2]
    assert scene.bound("late") is None
    scene.remove("late")
    scene.remove("service")
    scene.finish(once=lambda: all(scene.runs(name) for name in VICTIMS), longest_s=longest_s)


def is_for_service(_host: str, write: Write) -> bool:
    """Whether a write is the grant that a pod is evicted for."""
    return isinstance(write.message, Grant) and write.message.evict


def is_revoked(landed: list[Write]) -> bool:
    return any(isinstance(write.message, Revoke) for write in landed)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 50, 12), pytest.param(range(1, 70), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize(
    ("killed", "allocators"), [("allocator-a", 1), ("allocator-a", 2), ("pod-watcher", 1), ("agent-node-0", 2)]
)
def test_a_preemption_outlives_a_kill_at_any_step(killed: str, allocators: int, steps: range) -> None:
    """Killed in the middle of the n-th event since its request: no pod is evicted twice, and the place is not lost."""
    for step in steps:
        scene = two_have_to_go(allocators=allocators)
        scene.kill_after(killed, step)
        play(scene)


def test_a_place_is_had_although_a_pod_of_a_guaranteed_namespace_ends_before_its_grant_has_an_answer() -> None:
    """It was decided while the other stood there, and has to be repeated unchanged: that is no error."""
    scene = guaranteed_one()
    landed = scene.landed()
    lost = scene.lose(lambda host, write: is_for_service(host, write) and not is_revoked(landed))
    scene.pod("service", ranked("7g.40gb", 5))
    scene.until(lambda: bool(lost))
    scene.remove("stays")
    scene.until(lambda: scene.runs("service"))
    words = [write.message for write in landed if isinstance(write.message, (Grant, Revoke))]
    assert [(type(word), word.booking.name) for word in words][:2] == [(Revoke, "stays"), (Grant, "service")]
    (again,) = (write for write in landed if is_for_service("", write))
    assert (again.operation, again.attempt) == (lost[0].operation, len(lost) + 1)
    scene.finish()


def test_nobody_goes_for_a_pod_that_is_deleted_before_its_grant_has_an_answer() -> None:
    """The grant has to be sent again as it is, and lands. Its Revoke follows, and has no answer at first either."""
    scene = Scene(MIG_NODE, folder_evicts=True)
    scene.serve("goes", ranked("7g.40gb", 0, preemptible=True))
    landed = scene.landed()
    lost = scene.lose(lambda host, write: is_for_service(host, write) or is_revoked([write]), times=3)
    scene.pod("service", ranked("7g.40gb", 5))
    scene.until(lambda: bool(lost))
    scene.remove("service")
    scene.until(lambda: is_revoked(landed))
    scene.wait(5)
    assert any(is_for_service("", write) for write in landed)
    assert [asked.name for asked in scene.world.judge.requests.values()].count("goes") == 1, "it was evicted"
    scene.finish()


def test_the_judge_allows_for_a_guarantee_that_was_observed_only_in_the_incarnation_before() -> None:
    """It was on its way to the allocator when the broker was wiped, and was not published again."""
    scene = guaranteed_one()
    scene.remove("stays")
    scene.until(lambda: not scene.world.judge.held("node-1"))
    word = scene.world.broker.values.last("sluice.quota.den", scene.world.clockwork.now)
    scene.lose(lambda _host, write: write.subject == word.subject)
    scene.world.broker.wipe()
    scene.host("allocator-a").offer(Observed(Stream.BOOK, word))
    scene.world.broker.ensure()
    scene.serve("service", ranked("7g.40gb", 5))
    scene.world.broker.fate_of = lambda _host, _write: None
    scene.finish()


def test_the_last_pod_of_a_guaranteed_namespace_stays_when_the_other_has_ended() -> None:
    """Decided after that, its namespace would have lost both."""
    scene = guaranteed_one()
    scene.remove("stays")
    scene.until_lands(Revoke)
    scene.pod("service", ranked("7g.40gb", 5))
    scene.wait(8)
    assert scene.runs("goes")
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('service')}"), Pending)
    scene.finish()


@catches(counted_on_twice)
def test_two_who_are_served_by_one_word_leave_a_namespace_what_it_is_guaranteed() -> None:
    """The second must count without the pod that goes for the first: nothing of the namespace would be left.
    Two important pods wait for their limit, and one message raises it; a namespace that is guaranteed one has two."""
    limits = (QuotaSaid(at, "top", total=(most, None, None)) for at, most in ((0.0, 0), (RAISED_AT, 2)))
    quotas = (QuotaSaid(0.0, "den", guaranteed=(1, None, None)), *limits)
    scene = Scene(MIG_NODE, MIG_NODE, quotas=quotas, folder_evicts=True)
    scene.serve_all(VICTIMS, ranked("7g.40gb", 0, preemptible=True), namespace="den")
    scene.pod("first", ranked("7g.40gb", 5), namespace="top")
    scene.pod("second", ranked("4g.20gb", 5), namespace="top")
    scene.until(lambda: sum(scene.runs(name) for name in ("first", "second")) == 1, longest_s=RAISED_AT + 20.0)
    scene.wait(5)
    assert scene.world.clockwork.now > RAISED_AT
    assert sum(scene.runs(name) for name in VICTIMS) == 1
    scene.finish()


@catches(promised_is_had)
def test_a_place_that_others_have_yet_fills_no_guarantee() -> None:
    """Nothing of the namespace would run until they have gone, if they ever go.
    A namespace that is guaranteed one has one, and is promised the place of another namespace's pod that lingers."""
    quotas = (QuotaSaid(0.0, "den", guaranteed=(1, None, None)),)
    scene = Scene(MIG_NODE, MIG_NODE, quotas=quotas, folder_evicts=True)
    scene.pod("theirs", ranked("7g.40gb", 0, preemptible=True), lingers_s=5.0)
    scene.pod("one", ranked("7g.40gb", 1, preemptible=True), namespace="den")
    scene.until(lambda: scene.runs("theirs") and scene.runs("one"))
    landed = scene.landed()
    scene.pod("two", ranked("7g.40gb", 9), namespace="den")
    scene.until(lambda: any(is_for_service("", write) for write in landed))
    scene.pod("service", ranked("7g.40gb", 5))
    scene.wait(3)
    assert scene.runs("one")
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('service')}"), Pending)
    scene.until(lambda: scene.runs("two"))
    scene.remove("one")
    scene.finish(once=lambda: scene.runs("service"))


def _booked(name: str, namespace: str, *, instead_of: str = "") -> Grant:
    """One device on the only node; for whose place another is evicted."""
    device = DeviceGrant(container="main", gpu="GPU-node-0-0", profile="1g.5gb", start=0, size=1)
    booking = booking_of(name, "node-0", (device,), namespace=namespace)
    after = (AllocationId(instead_of),) if instead_of else ()
    return Grant(revision=1, incarnation=Incarnation("1"), booking=booking, after=after, evict=bool(after))


def _written(message: Grant | Revoke, number: int | str) -> Write:
    return write_of(subjects.ledger(NodeName("node-0"), message.booking.allocation), message, None, f"o-{number}")


class Deciding:
    """An allocator that decides by hand, and the judge that sees it; decisions have numbers."""

    def __init__(self, scene: Scene) -> None:
        self.judge, self.books, self.allocator = scene.world.guarantees, scene.world.judge, scene.host("allocator-a")

    def decide(self, message: Grant | Revoke, number: int) -> None:
        self.judge.instructed(self.allocator, _written(message, number))

    def land(self, message: Grant | Revoke, number: int) -> None:
        booking = message.booking
        self.books.ledger.setdefault("node-0", {})[booking.allocation] = message
        self.books.bookings[booking.allocation] = booking
        self.books.after[booking.allocation] = message.after
        self.judge.landed(_written(message, number), 1)

    def decide_and_land(self, message: Grant | Revoke, number: int) -> None:
        self.decide(message, number)
        self.land(message, number)


def test_the_judge_lets_count_again_who_was_to_go_for_a_grant_that_was_given_up() -> None:
    """It stays after all when another is evicted; that grant is late, and its own namespace gives it up meanwhile."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    den = Deciding(scene)
    for number, name in enumerate(("one", "two")):
        den.land(_booked(name, "den"), number)
    blocked = _booked("blocked", "lab", instead_of="one")
    given_up = Revoke(revision=2, incarnation=Incarnation("1"), booking=blocked.booking, cause="", after=blocked.after)
    for word in (blocked, given_up):
        den.decide_and_land(word, 2)
    late = _booked("late", "lab", instead_of="two")
    den.decide(late, 3)
    den.decide_and_land(_booked("own", "den", instead_of="one"), 4)
    den.land(late, 3)
    with pytest.raises(ViolationError, match="den has 0 devices left of 1"):
        den.decide_and_land(_booked("again", "lab", instead_of="two"), 5)


@pytest.mark.parametrize("was_first", [True, False])
def test_the_judge_goes_by_the_order_in_which_one_allocator_has_decided(was_first: bool) -> None:
    """What waits behind its guard is sent after what was decided later: a namespace gives up one for itself."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    land = Deciding(scene).decide_and_land
    for number, name in enumerate(("one", "two")):
        land(_booked(name, "den"), number)
    land(_booked("own", "den", instead_of="one"), 5)
    with nullcontext() if was_first else pytest.raises(ViolationError, match="den has 0 devices left of 1"):
        land(_booked("waited", "lab", instead_of="two"), 4 if was_first else 6)


@pytest.mark.parametrize("was_first", [True, False])
def test_a_guarantee_that_is_said_again_after_a_wipe_binds_what_is_decided_after_it_was_heard(was_first: bool) -> None:
    """What waited behind its guard meanwhile was decided without it (seed 2920002922)."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    judge, allocator, land = scene.world.guarantees, scene.host("allocator-a"), Deciding(scene).decide_and_land
    judge.wiped()
    land(_booked("one", "den"), 5)
    said, address = QuotaSet(namespace="den", guaranteed=Amounts(gpus=1)), subjects.quota("den")
    judge.landed(Write(OperationId("operator-2"), 1, Stream.BOOK, address.subject, address.guard, 0, said, ""), 2)
    entry = Entry(address.subject, 2, OperationId("operator-2"), said)
    assert isinstance(allocator.core, Allocator)
    waited = OperationId("o-7")
    if was_first:
        allocator.core.ctx.undecided[waited] = Unsent(address, waited, said)
    judge.listener(allocator)(Observed(Stream.BOOK, entry))
    with nullcontext() if was_first else pytest.raises(ViolationError, match="den has 0 devices left of 1"):
        land(_booked("waited", "lab", instead_of="one"), 7)


@pytest.mark.parametrize("is_kept", [True, False])
def test_only_a_place_that_is_kept_for_a_moved_pod_goes_to_who_is_less_important(is_kept: bool) -> None:
    """No pod is there; what its pod said of moves may have been edited since, and its grant have landed late."""
    scene = Scene(MIG_NODE, A30_NODE)
    scene.pod("moved", ranked("1g.5gb", 1, preemptible=True))
    scene.pod("comes", ranked("1g.6gb", 0))
    scene.until(lambda: scene.runs("moved") and scene.runs("comes"))
    books, moved, comes = scene.world.judge, scene.bound("moved"), scene.bound("comes")

    def land(name: str, request: RequestId, after: AllocationId) -> None:
        grant = _booked(name, "lab", instead_of=after)
        grant = msgspec.structs.replace(grant, booking=msgspec.structs.replace(grant.booking, request=request))
        books.bookings[grant.booking.allocation] = grant.booking
        books.after[grant.booking.allocation] = grant.after
        scene.world.preemptions.landed(_written(grant, name), 1)

    land("kept", moved.request, moved.allocation)
    with nullcontext() if is_kept else pytest.raises(ViolationError, match=f"{moved.request} of 1 goes for"):
        land("taken", comes.request, AllocationId("kept") if is_kept else moved.allocation)
