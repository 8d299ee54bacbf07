"""More requests than the queue takes: with a reason, looked at in their turn, never lost."""

from dataclasses import replace

import pytest
from factories.scheduling.allocator import Bench, asked, claim, kinds, only, working_allocator
from factories.scheduling.gangs import member

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice.contracts.messages import Cordoned, DeviceFilter, Grant, Pending, Revoke, Waived
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged
from sluice_allocator.core.explain.status import how_it_stands

WHOLE = claim(profile="7g.40gb")
MOST = 2


@pytest.fixture
def narrow() -> Bench:
    """One full GPU, and a queue for two in which w0 and w1 wait."""
    bench = working_allocator(SchedulerConfig(waiting_max=MOST))
    bench.add_nodes("node-a")
    bench.bound("p1", WHOLE)
    bench.asks(*(asked(f"w{number}", WHOLE) for number in range(MOST)))
    bench.said.clear()
    return bench


def told(said: list) -> dict[str, WaitReason]:
    return {each.request: each.reasons[0].reason for each in only(Pending, said)}


def test_who_comes_when_too_many_wait_is_told_so(narrow: Bench):
    """Silence would look like a pod that was lost; the sentence says why, and what would help."""
    (pending,) = narrow.asks(asked("late", WHOLE))
    assert pending.reasons[0].reason is WaitReason.QUEUE_FULL
    assert pending.message == (
        "the queue is full: 2 requests wait, and 1 more outside of it; this one enters it in its turn when others "
        "have a place or are withdrawn (the limit is the allocator's waiting_max)"
    )
    assert how_it_stands(narrow.allocator.ctx, RequestId("late")).message == f"waits: {pending.message}"


def test_a_job_that_is_kept_outside_is_told_so_and_goes_on_being_told(narrow: Bench):
    """All of its pods would show that places are searched, while none are."""
    narrow.asks(member("j0", WHOLE))
    assert told(narrow.asks(member("j1", WHOLE))) == dict.fromkeys(("j0", "j1"), WaitReason.QUEUE_FULL)
    assert told(narrow.passes(55.0, step=5.0)) == {}
    for name in ("j0", "j1"):
        assert "the queue is full" in how_it_stands(narrow.allocator.ctx, RequestId(name)).message
    said = [*narrow.withdraw("w1"), *narrow.passes(30.0, step=5.0)]
    assert told(said) == dict.fromkeys(("j0", "j1"), WaitReason.GROUP_NOT_FIT)


def test_a_place_is_offered_in_turn_over_inside_and_outside(narrow: Bench):
    """Requests outside get places in the order in which all asked."""
    narrow.asks(asked("late", WHOLE), asked("later", WHOLE))
    served, (holder,) = [], narrow.allocator.ctx.facts.ledger.values()
    for _ in range(4):
        narrow.said.clear()
        narrow.withdraw(holder.booking.name)
        narrow.land_all(narrow.gone(holder))
        (holder,) = only(Grant, narrow.said)
        narrow.land_all(narrow.ready(holder))
        served.append(holder.booking.name)
    assert served == ["w0", "w1", "late", "later"]


def test_who_is_let_in_is_tried_and_told_why_it_waits(narrow: Bench):
    """Another leaves: the next one is looked at like a new one, on the whole fleet."""
    unlike = claim(profile="7g.40gb", only=DeviceFilter(not_models=("H200",)))
    narrow.asks(asked("late", unlike))
    assert told(narrow.withdraw("w1")) == {"late": WaitReason.GPU_LAYOUT_FULL}
    assert RequestId("late") in narrow.allocator.ctx.queue


def test_an_urgent_pod_never_stands_outside_behind_those_who_are_not(narrow: Bench):
    """It takes the place of the last in turn, which shows it and comes in again in its turn."""
    assert told(narrow.asks(asked("urgent", WHOLE, priority=5)))["w1"] is WaitReason.QUEUE_FULL
    assert RequestId("urgent") in narrow.allocator.ctx.queue
    narrow.withdraw("w0")
    assert RequestId("w1") in narrow.allocator.ctx.queue


def test_very_many_outside_cost_an_event_a_bounded_amount():
    """A thousand come at once to a full queue: each event publishes some reasons, and all get one in the end."""
    bench = working_allocator(SchedulerConfig(waiting_max=1, new_tries=5))
    bench.add_nodes("node-a")
    bench.bound("p1", WHOLE)
    bench.handle(LeaseChanged(held=False))
    for number in range(100):
        bench.request(asked(f"w{number}", WHOLE))
    bench.said.clear()
    first = bench.handle(LeaseChanged(held=True))
    assert 0 < sum(isinstance(each, Write) for each in first) <= 2 * 5
    assert bench.allocator.unfinished
    writes = bench.land_all(first)
    for _ in range(100):
        writes += bench.land_all(bench.handle(Continue()))
    assert not bench.allocator.unfinished
    reasons = told(writes)
    assert (len(reasons), [*reasons.values()].count(WaitReason.QUEUE_FULL)) == (100, 99)


def test_who_stands_outside_and_loses_its_promise_is_told_so(narrow: Bench):
    """A pod would go on saying that its place is booked, when nothing is booked for it any more."""
    promised = narrow.passes(301.0)
    assert [(type(each.message), each.request) for each in promised] == [(Grant, "w0"), (Pending, "w0")]
    narrow.asks(*(asked(f"urgent{number}", WHOLE, priority=5) for number in range(MOST)))
    said = narrow.land_all(narrow.observe(subjects.cordon("node-a"), Cordoned(node="node-a")))
    assert kinds(each for each in said if each.request == "w0") == [Waived, Revoke, Pending]
    assert told(said)["w0"] is WaitReason.QUEUE_FULL
    assert RequestId("w0") in narrow.allocator.ctx.queue.outside


def test_a_request_that_came_while_no_allocator_worked_shows_at_once_why_it_waits(narrow: Bench):
    """Behind many of its shape a pod would say nothing for minutes after a failover, or that it stands outside."""
    (full,) = narrow.land_all(narrow.request(asked("outside", WHOLE)))
    assert told([full]) == {"outside": WaitReason.QUEUE_FULL}
    world = narrow.allocator.ctx.facts
    node = NodeName("node-a")
    values = [
        (subjects.head(node), world.heads[node]),
        (subjects.node(node), world.news[node]),
        (subjects.inventory(node), world.inventories[node]),
        *((subjects.request(each), fact) for each, fact in world.requests.items() if each != "w1"),
        *((subjects.binding(each), fact) for each, fact in world.bindings.items()),
        *((subjects.ledger(e.booking.node, e.booking.allocation), e) for e in world.ledger.values()),
        *((subjects.slice_(world.slice_nodes[a], a), fact) for a, fact in world.slices.items()),
        (subjects.request(RequestId("new")), asked("new", WHOLE)),
        (subjects.waiting(RequestId("outside")), full.message),
    ]
    new = Bench(Allocator(RunId("r2"), replace(SchedulerConfig(), waiting_max=MOST + 1)))
    new.read_all(*values, incarnation=world.incarnation)
    writes = new.land_all(new.handle(LeaseChanged(held=True)))
    while new.allocator.unfinished:
        writes += new.land_all(new.handle(Continue()))

    assert told(writes) == dict.fromkeys(("w0", "outside", "new"), WaitReason.GPU_LAYOUT_FULL)


def test_a_word_without_reasons_about_one_who_stands_outside_ends_no_allocator(narrow: Bench):
    """Whatever wrote it: it stays on the bus, and would end every allocator that reads it, one after the other."""
    narrow.asks(asked("late", WHOLE))
    word = Pending(request=RequestId("late"), request_revision=1, message="it waits", reasons=())
    narrow.land_all(narrow.observe(subjects.waiting(RequestId("late")), word))
    narrow.withdraw("w0")
    assert RequestId("late") in narrow.allocator.ctx.queue
