"""Slices whose ticket is in doubt."""

import pytest
from factories.scheduling.allocator import gpu_report, kinds, snapshot
from unit.allocator.request.test_lost_slices import (
    ASKS,
    BINDING,
    GRANT,
    HELD,
    LATE_BOUND,
    NODE,
    OLD,
    P1,
    opened,
    said,
    tick,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadAgain, Stream
from sluice.contracts.ids import Incarnation, RunId
from sluice.contracts.ticket_paths import ticket_name

TICKET = ticket_name(OLD, RunId("run-1"), 1)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_word_of_a_slice_whose_ticket_is_in_doubt_is_not_ended(empty, is_asked):
    """Its agent would remove the ticket and say that it is gone, and a pod that runs be evicted (ADR 0033)."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.ready(GRANT)
    if is_asked:
        empty.request(ASKS)
    assert said(tick(empty, 1.0)) == []
    assert said(tick(empty, 100.0)) == []
    assert said(tick(empty, 100.0)) == []


def test_whose_ticket_is_in_doubt_is_told_so_although_there_is_a_word_of_his_slice(empty):
    """The pod would show for ever that an open node is not open."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.ready(GRANT)
    assert "cannot believe ticket" in empty.request(ASKS)[0].message.message


def test_such_a_word_is_ended_when_its_pod_is_gone(empty):
    """No agent is there any more, and the message would stay for ever."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.ready(GRANT)
    empty.ends("p1", held=HELD)
    tick(empty, 1.0)
    assert kinds(said(tick(empty, 31.0))) == [msg.Revoke]


def test_a_binding_that_landed_after_a_wipe_does_not_end_what_is_in_doubt(empty):
    """Without that binding the pod waits (`test_lost_slices`); with it, which is right, it would be evicted."""
    opened(empty, doubtful_tickets=(TICKET,))
    empty.observe(BINDING, LATE_BOUND)
    empty.request(ASKS)
    tick(empty, 29.0)
    assert ReadAgain(Stream.BOOK) in tick(empty, 2.0)
    head = (subjects.head(NODE), empty.allocator.ctx.facts.heads[NODE])
    assert said(empty.read_again(Stream.BOOK, head, (BINDING, LATE_BOUND))) == []
    assert said(tick(empty, 100.0)) == []


def test_what_its_inventory_does_not_show_either_is_lost(empty):
    opened(empty)
    head = (subjects.head(NODE), empty.allocator.ctx.facts.heads[NODE])
    empty.read_again(Stream.STATE, (subjects.request(P1), ASKS), life=Incarnation("2000"))
    assert said(empty.read_again(Stream.BOOK, head)) == []
    landed = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), generation=2))
    assert kinds(landed) == [msg.Waived, msg.Released]
