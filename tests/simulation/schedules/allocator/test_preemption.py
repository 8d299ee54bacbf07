"""Evictions for a place: the interleavings that a simpler rule would lose, each played once on purpose."""

from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import pytest
from factories.words import booking_of
from simulation.judges.judge import ViolationError
from simulation.judges.preemptions import PREEMPTIBLE, PRIORITY
from simulation.judges.quotas import QuotaSaid
from simulation.plans.pods import Ask
from simulation.planted.allocator.preemptions import counted_on_twice, promised_is_had
from simulation.planted.bug import planted
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
    for name in VICTIMS:
        scene.pod(name, ranked("3g.20gb", 0, preemptible=True), lingers_s=0.5)
    scene.until(lambda: all(scene.runs(name) for name in VICTIMS), longest_s=60.0)
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
    scene.until(lambda: all(scene.runs(name) for name in VICTIMS), longest_s)
    scene.finish()


def is_for_service(_host: str, write: Write) -> bool:
    """Whether a write is the grant for whose place a pod is evicted."""
    return isinstance(write.message, Grant) and write.message.evict


def is_revoked(landed: list[Write]) -> bool:
    return any(isinstance(write.message, Revoke) for write in landed)


def ends_before_it_is_decided(*, lost: int) -> Scene:
    """What covers the guarantee is revoked, and then its last pod is asked to go; that grant is lost so many times."""
    scene = guaranteed_one()
    landed = scene.landed()
    scene.remove("stays")
    scene.until(lambda: is_revoked(landed))
    scene.lose(is_for_service, times=lost)
    scene.pod("service", ranked("7g.40gb", 5))
    scene.wait(8)
    return scene


@pytest.mark.timeout(180)
@pytest.mark.parametrize("steps", [range(1, 50, 12), pytest.param(range(1, 70), marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize(
    ("killed", "allocators"), [("allocator-a", 1), ("allocator-a", 2), ("pod-watcher", 1), ("agent-node-0", 2)]
)
def test_a_preemption_outlives_whoever_is_killed_at_any_step(killed: str, allocators: int, steps: range) -> None:
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


def test_the_judge_blames_nobody_for_a_guarantee_that_was_heard_of_only_in_the_life_before() -> None:
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
    scene = ends_before_it_is_decided(lost=0)
    assert scene.runs("goes")
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('service')}"), Pending)
    scene.finish()


def one_word_serves_two() -> Scene:
    """Two important pods wait for their limit, and one word raises it; a namespace that is guaranteed one has two."""
    limits = (QuotaSaid(at, "top", total=(most, None, None)) for at, most in ((0.0, 0), (RAISED_AT, 2)))
    quotas = (QuotaSaid(0.0, "den", guaranteed=(1, None, None)), *limits)
    scene = Scene(MIG_NODE, MIG_NODE, quotas=quotas, folder_evicts=True)
    for name in VICTIMS:
        scene.pod(name, ranked("7g.40gb", 0, preemptible=True), namespace="den")
    scene.until(lambda: all(scene.runs(name) for name in VICTIMS))
    scene.pod("first", ranked("7g.40gb", 5), namespace="top")
    scene.pod("second", ranked("4g.20gb", 5), namespace="top")
    scene.until(lambda: sum(scene.runs(name) for name in ("first", "second")) == 1, longest_s=RAISED_AT + 20.0)
    scene.wait(5)
    return scene


def test_two_who_are_served_by_one_word_leave_a_namespace_what_it_is_guaranteed() -> None:
    """The second must not count on the pod that goes for the first: nothing of the namespace would be left."""
    scene = one_word_serves_two()
    assert scene.world.clockwork.now > RAISED_AT
    assert sum(scene.runs(name) for name in VICTIMS) == 1
    scene.finish()


def test_the_judge_sees_that_somebody_is_counted_on_twice() -> None:
    """It has no chance: when the second counts on it, the judge reports it."""
    with planted(counted_on_twice), pytest.raises(ViolationError) as found:
        one_word_serves_two()
    assert found.value.rule == "guaranteed"


def two_have_to_go_one_after_the_other() -> Scene:
    """A namespace that is guaranteed one has one, and is promised the place of another namespace's pod that lingers."""
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
    return scene


def test_a_place_that_others_have_yet_fills_no_guarantee() -> None:
    """Nothing of the namespace would run until they have gone, if they ever go."""
    scene = two_have_to_go_one_after_the_other()
    assert scene.runs("one")
    assert isinstance(scene.value(f"sluice.waiting.{scene.request('service')}"), Pending)
    scene.until(lambda: scene.runs("two"))
    scene.remove("one")
    scene.until(lambda: scene.runs("service"))
    scene.finish()


def test_the_judge_sees_that_what_is_promised_is_taken_for_had() -> None:
    """Without chance: where it fills a guarantee, the judge speaks up."""
    with planted(promised_is_had), pytest.raises(ViolationError) as found:
        two_have_to_go_one_after_the_other()
    assert found.value.rule == "guaranteed"


def _booked(name: str, namespace: str, *, instead_of: str = "") -> Grant:
    """One device on the only node; for whose place another is evicted."""
    booking = booking_of(
        name,
        "node-0",
        (DeviceGrant(container="main", gpu="GPU-node-0-0", profile="1g.5gb", start=0, size=1),),
        namespace=namespace,
    )
    after = (AllocationId(instead_of),) if instead_of else ()
    return Grant(revision=1, incarnation=Incarnation("1"), booking=booking, after=after, evict=bool(after))


def test_the_judge_lets_count_again_who_was_to_go_for_a_grant_that_was_given_up() -> None:
    """It stays after all when another is evicted; that grant is late, and its own namespace gives it up meanwhile."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    judge, books, allocator = scene.world.guarantees, scene.world.judge, scene.host("allocator-a")

    numbers: dict[AllocationId, int] = {}

    def write(message: Grant | Revoke) -> Write:
        address = subjects.ledger(NodeName("node-0"), message.booking.allocation)
        number = numbers.setdefault(message.booking.allocation, len(numbers))
        return Write(OperationId(f"o-{number}"), 1, Stream.BOOK, address.subject, address.guard, 0, message, "")

    def land(message: Grant | Revoke) -> None:
        books.ledger.setdefault("node-0", {})[message.booking.allocation] = message
        books.bookings[message.booking.allocation] = message.booking
        books.after[message.booking.allocation] = message.after
        judge.landed(write(message), 1)

    def decide(message: Grant | Revoke) -> Grant | Revoke:
        judge.instructed(allocator, write(message))
        return message

    for name in ("one", "two"):
        land(_booked(name, "den"))
    blocked = _booked("blocked", "lab", instead_of="one")
    land(decide(blocked))
    land(
        decide(Revoke(revision=2, incarnation=Incarnation("1"), booking=blocked.booking, cause="", after=blocked.after))
    )
    late = decide(_booked("late", "lab", instead_of="two"))
    land(decide(_booked("own", "den", instead_of="one")))
    land(late)
    with pytest.raises(ViolationError, match="den has 0 devices left of 1"):
        land(decide(_booked("again", "lab", instead_of="two")))


@pytest.mark.parametrize("was_first", [True, False])
def test_the_judge_goes_by_the_order_in_which_one_allocator_has_decided(was_first: bool) -> None:
    """What waits behind its guard is sent after what was decided later: a namespace gives up one for itself."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    land = _landing(scene)
    for number, name in enumerate(("one", "two")):
        land(_booked(name, "den"), number)
    land(_booked("own", "den", instead_of="one"), 5)
    with nullcontext() if was_first else pytest.raises(ViolationError, match="den has 0 devices left of 1"):
        land(_booked("waited", "lab", instead_of="two"), 4 if was_first else 6)


@pytest.mark.parametrize("was_first", [True, False])
def test_a_guarantee_that_is_said_again_after_a_wipe_binds_what_is_decided_after_it_was_heard(was_first: bool) -> None:
    """What waited behind its guard meanwhile was decided without it (seed 2920002922)."""
    scene = Scene(MIG_NODE, quotas=(QuotaSaid(0.0, "den", guaranteed=(1, None, None)),))
    judge, allocator, land = scene.world.guarantees, scene.host("allocator-a"), _landing(scene)
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
        address = subjects.ledger(NodeName("node-0"), grant.booking.allocation)
        write = Write(OperationId(f"o-{name}"), 1, Stream.BOOK, address.subject, address.guard, 0, grant, "")
        scene.world.preemptions.landed(write, 1)

    land("kept", moved.request, moved.allocation)
    with nullcontext() if is_kept else pytest.raises(ViolationError, match=f"{moved.request} of 1 goes for"):
        land("taken", comes.request, AllocationId("kept") if is_kept else moved.allocation)


def _landing(scene: Scene) -> Callable[[Grant, int], None]:
    """Have an allocator decide something, by the number of its decision, and the judge see it land."""
    judge, books, allocator = scene.world.guarantees, scene.world.judge, scene.host("allocator-a")

    def write(message: Grant, number: int) -> Write:
        address = subjects.ledger(NodeName("node-0"), message.booking.allocation)
        return Write(OperationId(f"o-{number}"), 1, Stream.BOOK, address.subject, address.guard, 0, message, "")

    def land(message: Grant, number: int) -> None:
        judge.instructed(allocator, write(message, number))
        books.ledger.setdefault("node-0", {})[message.booking.allocation] = message
        books.bookings[message.booking.allocation] = message.booking
        books.after[message.booking.allocation] = message.after
        judge.landed(write(message, number), 1)

    return land
