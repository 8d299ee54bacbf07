"""Tickets that are there no more, or not as they were made, are made again as long as their slices stand."""

import shutil

import pytest

from sluice.contracts.messages import SliceReady
from sluice_node_agent.core.instructions import CompareTickets, MakeTicket

INSTANCE, HOME = (0, "3g.20gb", 4, 4), (2, None, 0, 1)


@pytest.fixture
def node(make_node):
    """A node with an instance and a share, ready, that were compared just now."""
    node = make_node()
    node.serve(node.booking("a1", INSTANCE), node.share("a2", HOME, owner="pod-2"))
    node.tick()
    assert CompareTickets in map(type, node.own_done)
    node.own_done.clear()
    return node


def test_the_link_to_a_daemons_home_is_put_right(node):
    """The container with the share would not find its daemon."""
    (folder,) = (node.tmp_path / "tickets").glob("*/main")
    link = folder / "pipe"
    link.unlink()
    link.symlink_to("/somewhere")
    node.tick(node.config.compare_tickets_s)
    assert str(link.readlink()).startswith("/mps/")


def test_no_ticket_is_made_for_a_slice_that_is_taken_back_meanwhile(node):
    """A container could start on a device that is being destroyed."""
    node.now += node.config.compare_tickets_s
    shutil.rmtree(node.tmp_path / "tickets")
    node.order(node.revoke(node.booking("a1", INSTANCE)))
    node.tick(0.0)
    node.tick(node.config.compare_tickets_s)
    assert [step.allocation for step in node.own_done if isinstance(step, MakeTicket)] == ["a2"]


def test_a_ticket_that_cannot_be_made_again_is_told_to_its_pod(node):
    """A person sees why nothing starts; it is tried on, and the reason goes when it is there."""
    shutil.rmtree(node.tmp_path / "tickets")
    node.refused = [MakeTicket] * 100
    node.tick(node.config.compare_tickets_s)
    assert "containers cannot start" in node.says("a1", SliceReady).warnings[0]
    assert "No space left" in node.word("a1").warnings[0]
    node.refused = []
    node.tick(5.0, times=10)
    assert node.word("a1").warnings == ()
