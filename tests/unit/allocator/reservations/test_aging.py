"""A request that has waited too long is promised a place: which, when, how many, and what becomes of a promise."""

from dataclasses import replace

import pytest
from factories.scheduling.allocator import Bench, asked, claim, messages, only, working_allocator
from msgspec.structs import replace as changed

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.explain.status import QueuePosition, how_it_stands
from sluice_allocator.core.reservations.aging import Aging

WHOLE = claim(profile="7g.40gb")
HALF = claim(profile="3g.20gb")
AFTER_S = 300.0


def yard(gpus: int = 1, **rules: float) -> Bench:
    """A node of so many GPUs with two halves on each: p0, p1 and so on."""
    bench = working_allocator(replace(SchedulerConfig(promise_after_s=AFTER_S), **rules))
    bench.add_nodes("node-a", gpus=gpus)
    for number in range(2 * gpus):
        bench.bound(f"p{number}", HALF)
    bench.said.clear()
    return bench


@pytest.fixture
def full() -> Bench:
    """One GPU with two halves on it (p0 and p1), and a request (big) that waits for all of it."""
    bench = yard()
    bench.asks(asked("big", WHOLE))
    return bench


def entry(bench: Bench, name: str) -> msg.Grant:
    world = bench.allocator.ctx.facts
    (found,) = only(msg.Grant, (world.ledger[each] for each in world.allocations_of[RequestId(name)]))
    return found


def promises(writes: list[Write]) -> dict[str, tuple[str, ...]]:
    """Requests with a promised place, and the grants that each waits for."""
    after = {grant.booking.name: grant.after for grant in only(msg.Grant, writes) if grant.after}
    return {name: tuple(each.partition("_")[0] for each in others) for name, others in after.items()}


def test_who_has_waited_long_enough_is_promised_the_place_that_is_free_soonest(full: Bench):
    """Without it small pods take each half as it is freed, and a pod that needs both waits for ever."""
    assert full.passes(AFTER_S - 1) == []
    grant, pending = messages(full.passes(1))
    assert (type(grant), grant.evict) == (msg.Grant, False)
    assert set(grant.after) == {entry(full, name).booking.allocation for name in ("p0", "p1")}
    assert pending.reasons[0].reason is WaitReason.PLACE_BEING_FREED
    assert pending.message == "its place on node-a is reserved and waits for default/p0, default/p1 to end"


def test_the_first_of_each_shape_is_promised_then_the_next():
    bench = yard(gpus=4, promises_percent=50)
    bench.asks(*(asked(name, WHOLE) for name in ("first", "second", "third")))
    assert list(promises(bench.passes(AFTER_S))) == ["first", "second"]
    assert promises(bench.passes(10_000)) == {}  # half of the GPUs are promised


def test_a_young_pod_before_an_old_one_of_its_shape_is_waited_for():
    """The urgent one is the head and has not waited; the old one has its turn after it, and is not forgotten."""
    bench = yard(gpus=2)
    bench.asks(asked("old", WHOLE))
    bench.passes(AFTER_S - 10)
    bench.asks(asked("urgent", WHOLE, priority=5))
    assert promises(bench.passes(10)) == {}
    bench.withdraw("urgent")
    assert list(promises(bench.passes(AFTER_S))) == ["old"]


def test_at_most_a_part_of_a_models_gpus_is_promised_and_always_one():
    """What is free of promised GPUs stays unused: without a bound that would become the whole fleet."""
    bench = yard(gpus=20, promises_percent=10)
    bench.asks(*(asked(f"w{number}", WHOLE) for number in range(6)))
    given = promises(bench.passes(AFTER_S)) | promises(bench.passes(1000))
    assert list(given) == ["w0", "w1"]
    assert sum(bench.allocator.ctx.promised.of_model.values()) == 2
    for name in given["w0"]:
        bench.land_all(bench.gone(entry(bench, name), revision=1))
    assert list(promises(bench.passes(1000))) == ["w2"]  # one is kept, so one more may be given


def test_no_request_is_promised_anything_where_that_is_switched_off():
    """`promises_percent` = 0 is first come, first served, with backfill."""
    bench = yard(promises_percent=0)
    bench.asks(asked("big", WHOLE))
    assert bench.passes(10 * AFTER_S) == []


def test_an_edit_does_not_make_a_request_young_again(full: Bench):
    """A user edits the pod after five minutes: it has still waited for five minutes."""
    full.passes(AFTER_S - 1)
    unlike = claim(profile="7g.40gb", only=msg.DeviceFilter(not_models=("H200",)))
    full.asks(asked("big", unlike, revision=2))
    assert list(promises(full.passes(1))) == ["big"]


def test_an_edited_request_is_promised_again(full: Bench):
    full.passes(AFTER_S)
    promised = entry(full, "big").booking
    said = full.asks(asked("big", claim(profile="4g.20gb"), revision=2))
    assert [each.booking for each in only(msg.Revoke, said)] == [promised]


def test_a_promise_on_a_node_that_restarts_and_is_cordoned_is_given_up(full: Bench):
    """Nothing is put there before it is open either, but that passes: its cordon may last for weeks."""
    full.passes(AFTER_S)
    promised = entry(full, "big").booking
    news = full.allocator.ctx.facts.news[promised.node]
    assert not full.land_all(full.observe(subjects.node(promised.node), changed(news, agent_run="again")))
    word = msg.Cordoned(node=promised.node, why="new fans")
    said = full.words(full.observe(subjects.cordon(promised.node), word))
    assert [each.booking for each in only(msg.Revoke, said)] == [promised]


def test_people_are_told_what_a_promise_waits_for(full: Bench):
    """`sluice explain` names the place, what it waits for, and that something else may come first."""
    full.passes(AFTER_S)
    stands = how_it_stands(full.allocator.ctx, RequestId("big"))
    assert stands.message == (
        "its place on node-a is reserved and waits for default/p0, default/p1 to end; "
        "it takes any other place that is free earlier"
    )
    assert stands.turn == QueuePosition(priority=0, before=0, waiting=1, ahead=0)


def test_those_who_are_due_come_in_the_order_of_turns():
    aging = Aging()
    aging.mark_due(b"b", (0, 7, RequestId("r7")))
    aging.mark_due(b"a", (-5, 9, RequestId("r9")))
    aging.mark_due(b"c", (0, 3, RequestId("r3")))
    assert [aging.next_due()[1] for _ in range(3)] == [b"a", b"c", b"b"]
    assert aging.next_due() is None


def test_a_place_that_cannot_be_promised_is_not_looked_for_all_the_time():
    """Ten thousand that can never be promised anything take no time from those that can."""
    bench = yard(promise_retry_s=10.0, promise_retry_max_s=80.0)
    bench.asks(asked("big", claim(profile="7g.40gb", gpus=2)))
    bench.passes(400.0, step=1.0)
    (group,) = bench.allocator.ctx.queue.shapes.values()
    assert 2 <= group.promise_failures <= 5


def test_a_promise_of_another_allocator_keeps_no_request_from_the_next_place():
    """It was kept out by a limit, and the next turn was its; others would wait until it has what it was promised."""
    bench = yard(gpus=3, promises_percent=67)
    for name, priority in (("first", 3), ("second", 2), ("third", 1)):
        bench.asks(asked(name, WHOLE, priority=priority))
    ctx = bench.allocator.ctx
    for _ in range(20):
        ctx.backoff.failed(RequestId("third"), ["GPU-elsewhere"], bench.now)  # it waits apart from its equals
    bench.asks(asked("third", WHOLE, priority=1, revision=2), asked("last", claim(profile="4g.20gb")))
    bench.passes(AFTER_S - 1)
    for _ in range(20):
        ctx.backoff.failed(RequestId("third"), ["GPU-elsewhere"], bench.now)
    assert promises(bench.passes(40.0, step=1.0)).keys() == {"first", "second"}

    first, second = entry(bench, "first"), entry(bench, "second")
    taken = {each.booking.devices[0].gpu for each in (first, second)}
    left = [each for each in only(msg.Grant, ctx.facts.ledger.values()) if each.booking.devices[0].gpu not in taken]
    third = {"allocation": AllocationId("third_r2_1"), "request": RequestId("third"), "name": "third"}
    device = changed(first.booking.devices[0], gpu=left[0].booking.devices[0].gpu)
    booking = changed(first.booking, request_revision=2, devices=(device,), **third)
    after = tuple(each.booking.allocation for each in left)
    bench.land_all(bench.reads(changed(first, booking=booking, after=after)))
    for promised in (first, second):
        bench.withdraw(promised.booking.name)
        bench.land_all(bench.gone(promised))
    assert promises(bench.passes(1000.0, step=1.0)).keys() == {"last"}
