"""Slices that are taken back, and those whose ticket is in doubt."""

import pytest
from factories.scheduling.allocator import INCARNATION, Bench, asked, gpu_report, snapshot
from factories.scheduling.gangs import WHOLE, ask, fleet, grants, member
from msgspec.structs import replace
from unit.allocator.request.test_lost_slices import HELD, NODE, OLD, late_bound, old_word, opened, said, tick

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Write
from sluice.contracts.ids import AllocationId, Incarnation, RequestId, RunId
from sluice.contracts.reasons import WaitReason
from sluice.contracts.ticket_paths import ticket_name
from sluice_allocator.core.events import Instruction


@pytest.fixture
def pair(bench: Bench) -> Bench:
    bench.add_nodes("node-b")
    bench.said.clear()
    return bench


def writes(said: list[Instruction]) -> list[Write]:
    return [each for each in said if isinstance(each, Write)]


def taken_back(bench: Bench, grant: msg.Grant, cause: str = "pod gone") -> list[msg.AnyMessage]:
    """Another allocator revokes a grant; what this one writes then."""
    return [write.message for write in revoked(bench, grant, cause)]


def after(bench: Bench, seconds: float) -> list[msg.AnyMessage]:
    """Time passes, tick by tick; what is written meanwhile."""
    return [write.message for write in bench.passes(seconds, step=0.5)]


def test_it_rests_longer_each_time_and_is_told_so(pair: Bench):
    """Else two allocators write as fast as the bus carries it, and each round makes and unmakes a slice."""
    grant = pair.granted("p")
    (told,) = taken_back(pair, grant)
    assert isinstance(told, msg.Pending)
    assert told.message == "another allocator revoked its last place; it is retried within 30 s"
    assert [(reason.reason, reason.count) for reason in told.reasons] == [(WaitReason.GPU_AVOIDED, 1)]

    assert after(pair, 0.5) == []
    grant, over = after(pair, 1.0)
    assert isinstance(grant, msg.Grant)
    assert over == msg.WaitOver(request=grant.booking.request)

    assert [type(word) for word in taken_back(pair, grant)] == [msg.Pending]
    assert after(pair, 1.5) == []
    assert [type(word) for word in after(pair, 1.0)] == [msg.Grant, msg.WaitOver]


def test_a_slice_that_failed_is_tried_on_another_gpu_at_once_whoever_took_it_back(pair: Bench):
    """The other allocator was only faster with its Revoke: the pod need not wait for it."""
    grant = pair.granted("p")
    booking = grant.booking
    mine, again = writes(pair.fails(grant, "full", error="NoMemory"))
    assert isinstance(mine.message, msg.Revoke)
    assert isinstance(again.message, msg.Grant)
    assert again.message.booking.node != booking.node
    theirs = replace(mine.message, cause="making the slice failed")
    assert writes(pair.observe(subjects.ledger(booking.node, booking.allocation), theirs)) == []
    assert not pair.allocator.ctx.backoff.rests(booking.request, pair.now)


def test_what_an_earlier_run_granted_is_no_quarrel_with_this_one(pair: Bench):
    """After a failover the new allocator puts right what the old one did; no pod waits for that."""
    other = pair.granted("q")
    foreign = msg.Grant(
        revision=1,
        incarnation=other.incarnation,
        booking=replace(other.booking, allocation=AllocationId("q_elsewhere-r9_1")),
    )
    taken_back(pair, foreign)
    assert not pair.allocator.ctx.backoff.rests(other.booking.request, pair.now)


@pytest.mark.parametrize("size", [1, 2])
def test_a_job_rests_like_one_pod_and_keeps_its_turn(size: int):
    """A job that is deleted while one of two allocators reads late: neither an endless quarrel, nor forgotten."""
    bench = fleet(2 * size)
    pods = [member(f"m{number}", WHOLE, size=size) for number in range(size)]
    granted = grants(ask(bench, *pods))

    def goes_on(seconds: float) -> list[msg.AnyMessage | None]:
        said: list[msg.AnyMessage | None] = []
        for _ in range(round(seconds * 2)):
            landed = bench.passes(0.5)
            while landed:
                said += [write.message for write in landed]
                landed = [more for write in landed for more in read_back(bench, write)]
        return said

    for pause_s in (1, 2, 4):
        told = [write for grant in granted.values() for write in revoked(bench, grant)]
        assert {type(write.message) for write in told} == {msg.Pending}
        assert [more for write in told for more in read_back(bench, write) if isinstance(more.message, msg.Grant)] == []
        assert grants(goes_on(pause_s - 0.5)) == {}
        for grant in granted.values():
            bench.land_all(bench.gone(grant))
        granted = grants(goes_on(1.0))
        assert sorted(granted) == [pod.name for pod in pods]


def revoked(bench: Bench, grant: msg.Grant, cause: str = "pod gone") -> list[Write]:
    revoke = msg.Revoke(revision=2, incarnation=grant.incarnation, booking=grant.booking, cause=cause)
    return bench.land_all(bench.reads(revoke))


def read_back(bench: Bench, write: Write) -> list[Write]:
    """A word that this process has written is read by it; what it writes then."""
    if not isinstance(write.message, msg.Pending):
        return []
    address = subjects.waiting(write.message.request)
    return bench.land_all(bench.observe(address, write.message, write.operation))


TICKET = ticket_name(OLD, RunId("run-1"), 1)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_word_of_a_slice_whose_ticket_is_in_doubt_is_not_ended(empty, is_asked):
    """Its agent would remove the ticket and say that it is gone, and a pod that runs be evicted (ADR 0033)."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.observe(subjects.slice_(NODE, OLD), old_word())
    if is_asked:
        empty.request(replace(asked("p1"), held=HELD))
    assert said(tick(empty, 1.0)) == []
    assert said(tick(empty, 100.0)) == []
    assert said(tick(empty, 100.0)) == []


def test_whose_ticket_is_in_doubt_is_told_so_although_there_is_a_word_of_his_slice(empty):
    """The pod would show for ever that an open node is not open."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.observe(subjects.slice_(NODE, OLD), old_word())
    empty.said.clear()
    empty.request(replace(asked("p1"), held=HELD))
    assert "cannot believe ticket" in empty.said[0].message.message


def test_such_a_word_is_ended_when_its_pod_is_gone(empty):
    """No agent is there any more, and the message would stay for ever."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.observe(subjects.slice_(NODE, OLD), old_word())
    empty.ends("p1", held=HELD)
    tick(empty, 1.0)
    (revoke,) = said(tick(empty, 31.0))
    assert isinstance(revoke, msg.Revoke)


def test_a_binding_that_landed_after_a_wipe_does_not_end_what_is_in_doubt(empty):
    """Without that binding the pod waits (`test_lost_slices`); with it, which is right, it would be evicted."""
    opened(empty, doubtful_tickets=(TICKET,))
    binding = subjects.binding(RequestId("p1"))
    empty.observe(binding, late_bound())
    empty.request(replace(asked("p1"), held=HELD))
    tick(empty, 29.0)
    assert ReadAgain(Stream.BOOK) in tick(empty, 2.0)
    head = empty.allocator.ctx.facts.heads[NODE]
    empty.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    empty.observe(subjects.head(NODE), head)
    empty.observe(binding, late_bound())
    assert said(empty.handle(ReadingCaughtUp(Stream.BOOK))) == []
    assert said(tick(empty, 100.0)) == []


def test_what_its_inventory_does_not_show_either_is_lost(empty):
    opened(empty)
    head = empty.allocator.ctx.facts.heads[NODE]
    empty.handle(ReadingStarted(Stream.STATE, Incarnation("2000")))
    empty.observe(subjects.request(RequestId("p1")), replace(asked("p1"), held=HELD))
    empty.handle(ReadingCaughtUp(Stream.STATE))
    empty.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    empty.observe(subjects.head(NODE), head)
    assert said(empty.handle(ReadingCaughtUp(Stream.BOOK))) == []
    landed = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), generation=2))
    assert [type(each.message) for each in landed] == [msg.Waived, msg.Released]
