"""Slices whose ticket is in doubt."""

import pytest
from factories.scheduling.allocator import INCARNATION, asked, gpu_report, snapshot
from msgspec.structs import replace
from unit.allocator.request.test_lost_slices import HELD, NODE, OLD, late_bound, old_word, opened, said, tick

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, RequestId, RunId
from sluice.contracts.ticket_paths import ticket_name

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
