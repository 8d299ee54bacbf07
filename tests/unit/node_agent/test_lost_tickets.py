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


def _folder(node):
    return node.tmp_path / "tickets"


def _emptied(node):
    shutil.rmtree(_folder(node))


def _link(node):
    """Where the container with the share finds its daemon."""
    (folder,) = _folder(node).glob("*/main")
    return folder / "pipe"


def _leads_elsewhere(node):
    link = _link(node)
    link.unlink()
    link.symlink_to("/somewhere")


def test_the_link_to_a_daemons_home_is_put_right(node):
    _leads_elsewhere(node)
    node.tick(node.config.compare_tickets_s)
    assert str(_link(node).readlink()).startswith("/mps/")


def test_no_ticket_is_made_for_a_slice_that_is_taken_back_meanwhile(node):
    """A container could start on a device that is being destroyed."""
    node.now += node.config.compare_tickets_s
    _emptied(node)
    booking = node.booking("a1", INSTANCE)
    node.order(node.revoke(booking))
    node.tick(0.0)
    node.tick(node.config.compare_tickets_s)
    made = [step.allocation for step in node.own_done if isinstance(step, MakeTicket)]
    assert made == ["a2"]


def test_a_ticket_that_cannot_be_made_again_is_told_to_its_pod(node, monkeypatch):
    """A person sees why nothing starts; it is tried on, and the word goes when it is there."""
    _emptied(node)

    def full(_order):
        raise OSError(28, "No space left on device")

    make = node.tickets.make
    monkeypatch.setattr(node.tickets, "make", full)
    node.tick(node.config.compare_tickets_s)
    assert isinstance(node.word("a1"), SliceReady)
    assert "containers cannot start" in node.word("a1").warnings[0]
    assert "No space left" in node.word("a1").warnings[0]
    monkeypatch.setattr(node.tickets, "make", make)
    node.tick(5.0, times=10)
    assert node.word("a1").warnings == ()
