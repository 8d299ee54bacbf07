"""Who has waited too long is promised a place: who, when, how many, and what becomes of a promise."""

from dataclasses import replace

import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Cordoned,
    DeviceFilter,
    Grant,
    Pending,
    PodGroup,
    RequestWithdrawn,
    Revoke,
    SliceQuarantined,
)
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.explain.status import QueuePosition, how_it_stands
from sluice_allocator.core.reservations.aging import Aging

WHOLE = claim(profile="7g.40gb")
HALF = claim(profile="3g.20gb")
SMALL = claim(profile="1g.5gb")
AFTER_S = 300.0


def yard(gpus: int = 1, **rules: float) -> Bench:
    bench = Bench(Allocator(RunId("r1"), replace(SchedulerConfig(promise_after_s=AFTER_S), **rules)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    bench.add_node(snapshot("node-a", tuple(gpu_report("node-a", index) for index in range(gpus))))
    bench.said.clear()
    return bench


@pytest.fixture
def full() -> Bench:
    """One GPU with two halves on it (p1 and p2), and somebody (big) who waits for all of it."""
    bench = yard()
    bench.bound("p1", HALF)
    bench.bound("p2", HALF)
    bench.land_all(bench.request(asked("big", WHOLE)))
    return bench


def entry(bench: Bench, name: str) -> Grant:
    world = bench.allocator.ctx.facts
    (found,) = [e for a in world.allocations_of[RequestId(name)] if isinstance(e := world.ledger[a], Grant)]
    return found


def pass_time(bench: Bench, seconds: float) -> list[Write]:
    bench.now += seconds
    return bench.land_all(bench.handle(Ticked()))


def promises(writes: list[Write]) -> dict[str, tuple[str, ...]]:
    """Who was promised a place, and for whom each waits."""
    grants = [write.message for write in writes if isinstance(write.message, Grant)]
    world_names = {grant.booking.name: tuple(name.partition("_")[0] for name in grant.after) for grant in grants}
    return {name: after for name, after in world_names.items() if after}


def kinds(writes: list[Write]) -> list[type]:
    return [type(write.message) for write in writes]


def test_who_has_waited_long_enough_is_promised_the_place_that_is_free_soonest(full: Bench):
    """Without it small pods take each half as it is freed, and a pod that needs both waits for ever."""
    assert pass_time(full, AFTER_S - 1) == []
    writes = pass_time(full, 1)

    assert [type(write.message) for write in writes] == [Grant, Pending]
    grant, pending = (write.message for write in writes)
    assert isinstance(grant, Grant)
    assert isinstance(pending, Pending)
    assert set(grant.after) == {entry(full, name).booking.allocation for name in ("p1", "p2")}
    assert not grant.evict
    assert pending.reasons[0].reason is WaitReason.PLACE_BEING_FREED
    assert pending.message == "its place on node-a is reserved and waits for default/p1, default/p2 to end"


def test_a_promise_that_was_carried_out_is_not_taken_back_for_a_last_word_that_is_late(full: Bench):
    """Its pod runs, and would lose its slice, because those before it are not yet said to be gone."""
    pass_time(full, AFTER_S)
    promised = entry(full, "big")
    for name in ("p1", "p2"):
        gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
        full.land_all(full.observe(subjects.request(RequestId(name)), gone))
    (bound,) = [write.message for write in full.land_all(full.ready(promised)) if isinstance(write.message, Bound)]
    assert bound.allocation == promised.booking.allocation

    cordoned = Cordoned(node=NodeName("node-a"), gpus=(promised.booking.devices[0].gpu,), why="fan")
    writes = full.land_all(full.observe(subjects.cordon(NodeName("node-a")), cordoned))

    assert Revoke not in kinds(writes)
    assert entry(full, "big") == promised


def test_a_promise_that_another_allocator_has_bound_is_not_taken_back_for_words_that_are_late(full: Bench):
    """Its pod runs; this process has read the binding, and none of the agent's words that led to it."""
    pass_time(full, AFTER_S)
    promised = entry(full, "big")
    bound = Bound(
        request=RequestId("big"),
        request_revision=1,
        allocation=promised.booking.allocation,
        node=promised.booking.node,
        revision=1,
        ticket="ticket-1",
        containers=(),
        slice_sequence=1,
    )
    full.land_all(full.observe(subjects.binding(RequestId("big")), bound))
    cordoned = Cordoned(node=NodeName("node-a"), gpus=(promised.booking.devices[0].gpu,), why="fan")
    writes = full.land_all(full.observe(subjects.cordon(NodeName("node-a")), cordoned))

    assert Revoke not in kinds(writes)
    assert entry(full, "big") == promised


def test_a_promised_pod_takes_whatever_is_free_earlier_and_gives_its_promise_back(full: Bench):
    """A node comes up: no pod waits for tenants there. What was kept free for it is offered to the others again."""
    pass_time(full, AFTER_S)
    full.land_all(full.gone(entry(full, "p1"), revision=1))
    full.land_all(full.request(asked("late", HALF)))
    promised = entry(full, "big")
    full.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    world = full.allocator.ctx.facts
    (other,) = [world.ledger[a] for a in world.allocations_of[RequestId("big")] if a != promised.booking.allocation]
    assert isinstance(other, Grant)
    assert other.booking.node == NodeName("node-b")
    assert isinstance(world.ledger[promised.booking.allocation], Grant)  # not before the other is really there
    writes = full.land_all(full.ready(other))

    revoke = next(write.message for write in writes if isinstance(write.message, Revoke))
    assert revoke.booking == promised.booking
    assert revoke.after == promised.after  # its agent may never have read the grant
    full.land_all(full.gone(promised))
    assert entry(full, "late").booking.node == NodeName("node-a")


def test_the_first_of_each_shape_is_promised_then_the_next():
    """Who comes first is served first, and several may be promised at once."""
    bench = yard(gpus=4, promises_percent=50)
    for number in range(8):
        bench.bound(f"p{number}", HALF)
    for name in ("first", "second", "third"):
        bench.land_all(bench.request(asked(name, WHOLE)))
    assert list(promises(pass_time(bench, AFTER_S))) == ["first", "second"]
    assert promises(pass_time(bench, 10_000)) == {}  # half of the GPUs are promised


def test_a_young_pod_before_an_old_one_of_its_shape_is_waited_for():
    """The urgent one is the head and has not waited; the old one has its turn after it, and is not forgotten."""
    bench = yard(gpus=2)
    for number in range(4):
        bench.bound(f"p{number}", HALF)
    bench.land_all(bench.request(asked("old", WHOLE)))
    pass_time(bench, AFTER_S - 10)
    bench.land_all(bench.request(asked("urgent", WHOLE, priority=5)))
    assert promises(pass_time(bench, 10)) == {}
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    bench.land_all(bench.observe(subjects.request(RequestId("urgent")), withdrawn))

    assert list(promises(pass_time(bench, AFTER_S))) == ["old"]


def test_at_most_a_part_of_a_models_gpus_is_promised_and_always_one():
    """What is free of promised GPUs stays unused: that must not become the whole fleet."""
    bench = yard(gpus=20, promises_percent=10)
    for number in range(40):
        bench.bound(f"p{number}", HALF)
    for number in range(6):
        bench.land_all(bench.request(asked(f"w{number}", WHOLE)))
    given = promises(pass_time(bench, AFTER_S)) | promises(pass_time(bench, 1000))
    assert list(given) == ["w0", "w1"]
    assert sum(bench.allocator.ctx.promised.of_model.values()) == 2

    for name in given["w0"]:
        bench.land_all(bench.gone(entry(bench, name), revision=1))
    assert list(promises(pass_time(bench, 1000))) == ["w2"]  # one is kept, so one more may be given


def test_nobody_is_promised_anything_where_that_is_switched_off():
    """`promises_percent` = 0 is first come, first served, with backfill."""
    bench = yard(promises_percent=0)
    bench.bound("p1", HALF)
    bench.land_all(bench.request(asked("big", WHOLE)))
    assert pass_time(bench, 10 * AFTER_S) == []


def test_an_edit_does_not_make_a_request_young_again():
    """A user edits the pod after five minutes: it has still waited for five minutes."""
    bench = yard()
    bench.bound("p1", HALF)
    bench.land_all(bench.request(asked("big", WHOLE)))
    pass_time(bench, AFTER_S - 1)
    unlike = claim(profile="7g.40gb", only=DeviceFilter(not_models=("H200",)))
    bench.land_all(bench.request(asked("big", unlike, revision=2)))
    assert list(promises(pass_time(bench, 1))) == ["big"]


def test_members_of_a_group_are_not_promised_places_one_by_one():
    """A job needs all its places at once: one that is kept for a part of it would be kept for nothing."""
    bench = yard()
    bench.bound("p1", HALF)
    message = asked("job-0", WHOLE)
    of_group = AllocationRequested(
        **{name: getattr(message, name) for name in ("revision", "source", "namespace", "name", "origin", "owner")},
        claims=message.claims,
        group=PodGroup(name="job", size=2),
    )
    bench.land_all(bench.request(of_group))
    assert promises(pass_time(bench, 10 * AFTER_S)) == {}


def test_a_promise_on_a_gpu_that_is_cordoned_is_given_up_and_another_is_made():
    """New slices never land where an operator wants nothing new."""
    bench = yard(gpus=2)
    for number in range(3):
        bench.bound(f"p{number}", HALF)
    bench.land_all(bench.request(asked("big", WHOLE)))
    pass_time(bench, AFTER_S)
    first = entry(bench, "big").booking
    cordoned = Cordoned(node=NodeName("node-a"), gpus=(first.devices[0].gpu,), why="fan")
    writes = bench.land_all(bench.observe(subjects.cordon(NodeName("node-a")), cordoned))

    assert [w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)] == [first.allocation]
    bench.land_all(bench.gone(Grant(revision=1, incarnation=bench.allocator.ctx.facts.incarnation, booking=first)))
    again = pass_time(bench, 1000)
    assert list(promises(again)) == ["big"]
    assert entry(bench, "big").booking.devices[0].gpu != first.devices[0].gpu


def test_a_slice_in_quarantine_is_waited_for_no_longer_and_another_place_is_promised():
    """A process hangs in the driver: the place may never be free, and all others would be taken piece by piece."""
    bench = yard(gpus=2)
    for number in range(3):
        bench.bound(f"p{number}", HALF)
    bench.land_all(bench.request(asked("big", WHOLE)))
    pass_time(bench, AFTER_S)
    promise = entry(bench, "big")
    (hangs,) = (entry(bench, f"p{number}") for number in range(3) if f"p{number}_" in promise.after[0])
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    bench.land_all(bench.observe(subjects.request(hangs.booking.request), withdrawn))
    assert kinds(pass_time(bench, 1000)) == []
    stays = SliceQuarantined(
        allocation=hangs.booking.allocation, request=hangs.booking.request, revision=2, message="in use"
    )
    address = subjects.slice_(hangs.booking.node, hangs.booking.allocation)
    waived, revoke, *_ = (write.message for write in bench.land_all(bench.observe(address, stays)))
    name = hangs.booking.name
    assert waived.cause == revoke.cause == f"its place on node-a could not be freed: default/{name}"
    bench.land_all(bench.gone(promise))
    again = pass_time(bench, 1000)
    assert list(promises(again)) == ["big"]
    assert name not in promises(again)["big"]


def test_an_edited_request_is_promised_anew(full: Bench):
    """What is kept for it is not what it asks for any more."""
    pass_time(full, AFTER_S)
    promised = entry(full, "big").booking
    edited = asked("big", claim(profile="4g.20gb"), revision=2)
    writes = full.land_all(full.request(edited))
    assert [w.message.booking for w in writes if isinstance(w.message, Revoke)] == [promised]


def test_of_two_promises_for_one_request_the_first_stands(full: Bench):
    """Two allocators promise at once: what both book is kept from everybody, so one goes, the same for every reader."""
    pass_time(full, AFTER_S)
    mine = entry(full, "big")
    full.add_node(snapshot("node-b", (gpu_report("node-b", 0),)))
    world = full.allocator.ctx.facts
    for allocation in [a for a in world.allocations_of[RequestId("big")] if a != mine.booking.allocation]:
        full.land_all(full.gone(world.ledger[allocation], revision=1))
    # one more, of another allocator, on the same GPU's halves after the first was written
    booking = changed(mine.booking, allocation=AllocationId("big_r2_1"))
    theirs = Grant(revision=1, incarnation=world.incarnation, booking=booking, after=mine.after)
    writes = full.land_all(full.observe(subjects.ledger(NodeName("node-a"), booking.allocation), theirs))

    revoked = [w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)]
    assert revoked == ["big_r2_1"]


def test_whoever_takes_over_knows_what_is_promised(full: Bench):
    """Promises are in the ledger: a new allocator keeps place, turn and count, and promises nothing twice."""
    pass_time(full, AFTER_S)
    world = full.allocator.ctx.facts
    values = [
        (subjects.head(NodeName("node-a")), world.heads[NodeName("node-a")]),
        (subjects.node(NodeName("node-a")), world.news[NodeName("node-a")]),
        (subjects.inventory(NodeName("node-a")), world.inventories[NodeName("node-a")]),
        *((subjects.request(each), fact) for each, fact in world.requests.items()),
        *((subjects.binding(each), fact) for each, fact in world.bindings.items()),
        *((subjects.ledger(e.booking.node, e.booking.allocation), e) for e in world.ledger.values()),
        *((subjects.slice_(world.slice_nodes[a], a), fact) for a, fact in world.slices.items()),
    ]
    new = Bench(Allocator(RunId("r2"), SchedulerConfig(promise_after_s=AFTER_S)))
    new.read_all(*values, incarnation=world.incarnation)
    new.land_all(new.handle(LeaseChanged(held=True)))
    ctx = new.allocator.ctx
    assert RequestId("big") in ctx.queue
    assert sum(ctx.promised.of_model.values()) == 1
    new.land_all(new.request(asked("late", SMALL)))
    assert RequestId("late") in ctx.queue

    assert promises(pass_time(new, 2 * AFTER_S)) == {}


def test_people_are_told_what_a_promise_waits_for(full: Bench):
    """`sluice explain` names the place, whom it waits for, and that something else may come first."""
    pass_time(full, AFTER_S)
    stands = how_it_stands(full.allocator.ctx, RequestId("big"))
    assert stands is not None
    assert stands.message == (
        "its place on node-a is reserved and waits for default/p1, default/p2 to end; "
        "it takes any other place that is free earlier"
    )
    assert stands.turn == QueuePosition(priority=0, before=0, waiting=1, ahead=0)


def test_who_could_use_what_is_kept_is_told_that_it_is_kept(full: Bench):
    """Half a GPU is free and no pod gets it: without a word people would take that for a fault."""
    pass_time(full, AFTER_S)
    full.land_all(full.gone(entry(full, "p1"), revision=1))
    (write,) = full.land_all(full.request(asked("late", SMALL)))
    pending = write.message
    assert isinstance(pending, Pending)
    model = full.allocator.ctx.cluster.models()[0].product_names[0]
    assert pending.message == (
        f"1 x {model}: no free place of that size; 1 x {model}: reserved for pods ahead in the queue"
    )
    assert [each.reason for each in pending.reasons] == [WaitReason.GPU_LAYOUT_FULL, WaitReason.PLACE_PROMISED]


def test_each_shape_is_looked_at_once_and_early_looks_win():
    """A shape for which very many wait is one entry; one who has waited longer makes it due earlier."""
    aging = Aging()
    for _ in range(1000):
        aging.look_at(b"many", 50.0)
    aging.look_at(b"old", 90.0)
    aging.look_at(b"old", 20.0)

    assert aging.next_to_look_at(10.0) is None
    assert aging.next_to_look_at(20.0) == b"old"
    assert aging.next_to_look_at(60.0) == b"many"
    assert aging.next_to_look_at(1e6) is None


def test_those_who_are_due_come_in_the_order_of_turns():
    """Whose turn it is does not depend on who was found to be due first."""
    aging = Aging()
    aging.mark_due(b"b", (0, 7, RequestId("r7")))
    aging.mark_due(b"a", (-5, 9, RequestId("r9")))
    aging.mark_due(b"c", (0, 3, RequestId("r3")))
    assert [aging.next_due()[1] for _ in range(3)] == [b"a", b"c", b"b"]
    assert aging.next_due() is None


def test_a_place_that_cannot_be_promised_is_not_looked_for_all_the_time():
    """Ten thousand who can never be promised anything must not take the time of those who can."""
    bench = yard(promise_retry_s=10.0, promise_retry_max_s=80.0)
    bench.land_all(bench.request(asked("big", claim(profile="7g.40gb", gpus=2))))
    tries = 0
    for _ in range(400):
        group = next(iter(bench.allocator.ctx.queue.shapes.values()))
        pass_time(bench, 1.0)
        tries = group.promise_failures
    assert 2 <= tries <= 5


def test_who_was_promised_a_place_by_another_allocator_keeps_nobody_from_the_next():
    """It was kept out by a limit, and the next turn was its; others would wait until it has what it was promised."""
    bench = yard(gpus=3, promises_percent=67)
    for number in range(6):
        bench.bound(f"p{number}", HALF)
    for name, priority in (("first", 3), ("second", 2), ("third", 1)):
        bench.land_all(bench.request(asked(name, WHOLE, priority=priority)))
    ctx = bench.allocator.ctx
    for _ in range(20):
        ctx.backoff.failed(RequestId("third"), ["GPU-elsewhere"], bench.now)  # it waits apart from its equals
    bench.land_all(bench.request(asked("third", WHOLE, priority=1, revision=2)))
    bench.land_all(bench.request(asked("last", claim(profile="4g.20gb"))))
    pass_time(bench, AFTER_S - 1)
    for _ in range(20):
        ctx.backoff.failed(RequestId("third"), ["GPU-elsewhere"], bench.now)
    written = [write for _ in range(40) for write in pass_time(bench, 1.0)]
    assert promises(written).keys() == {"first", "second"}

    world = ctx.facts
    taken = {entry(bench, name).booking.devices[0].gpu for name in ("first", "second")}
    left = [e for e in world.ledger.values() if isinstance(e, Grant) and e.booking.devices[0].gpu not in taken]
    whole = entry(bench, "first").booking
    booking = changed(
        whole,
        allocation=AllocationId("third_r2_1"),
        request=RequestId("third"),
        request_revision=2,
        name="third",
        devices=(changed(whole.devices[0], gpu=left[0].booking.devices[0].gpu),),
    )
    after = tuple(each.booking.allocation for each in left)
    theirs = Grant(revision=1, incarnation=world.incarnation, booking=booking, after=after)
    bench.land_all(bench.observe(subjects.ledger(NodeName("node-a"), booking.allocation), theirs))
    for name in ("first", "second"):
        promised = entry(bench, name)
        withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
        bench.land_all(bench.observe(subjects.request(RequestId(name)), withdrawn))
        bench.land_all(bench.gone(promised))
    written = [write for _ in range(1000) for write in pass_time(bench, 1.0)]
    assert promises(written).keys() == {"last"}
