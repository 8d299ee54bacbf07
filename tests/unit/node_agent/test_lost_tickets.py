"""Tickets that are there no more, or not as they were made, are made again as long as their slices stand."""

import shutil

import pytest

from sluice.contracts.messages import SliceReady
from sluice_node_agent.core.instructions import CompareTickets, MakeTicket, RemoveTicket

INSTANCE, HOME = (0, "3g.20gb", 4, 4), (2, None, 0, 1)


@pytest.fixture
def node(make_node):
    """A node with an instance and a share, ready, that were compared just now."""
    node = make_node()
    node.live()
    for booking in (node.booking("a1", INSTANCE), node.share("a2", HOME, owner="pod-2")):
        node.order(node.grant(booking))
    node.work()
    node.tick()
    assert CompareTickets in map(type, node.own_done)
    node.own_done.clear()
    return node


def _folder(node):
    return node.tmp_path / "tickets"


def _emptied(node):
    shutil.rmtree(_folder(node))


def _half_written(node):
    for document in _folder(node).glob("*/slice.json"):
        document.write_bytes(document.read_bytes()[:40])


def _another_record(node):
    for document in _folder(node).glob("*/slice.json"):
        document.write_text("{}")


def _without_documents(node):
    for document in _folder(node).glob("*/slice.json"):
        document.unlink()


def _link(node):
    """Where the container with the share finds its daemon."""
    (folder,) = _folder(node).glob("*/main")
    return folder / "pipe"


def _leads_elsewhere(node):
    link = _link(node)
    link.unlink()
    link.symlink_to("/somewhere")


WAYS = [_emptied, _half_written, _another_record, _without_documents]


@pytest.mark.parametrize("lose", WAYS)
@pytest.mark.parametrize("dies", [False, True])
def test_a_ticket_that_is_lost_is_made_again_under_its_name(node, lose, dies):
    """Its pod has that name: without it none of its containers starts any more, and no message would say why."""
    before = {a: node.word(a) for a in ("a1", "a2")}
    there = {path.name: (path / "slice.json").read_bytes() for path in _folder(node).iterdir()}
    lose(node)
    if dies:
        node.start()
        node.work()
        node.open()
        node.work()
    node.tick(node.config.compare_tickets_s)
    assert {path.name: (path / "slice.json").read_bytes() for path in _folder(node).iterdir()} == there
    assert {a: node.word(a) for a in ("a1", "a2")} == before
    assert not any(isinstance(step, RemoveTicket) for step in node.own_done)


def test_the_link_to_a_daemons_home_is_put_right(node):
    """A container with a share would find its ticket, and no daemon."""
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
    for _ in range(10):
        node.tick(5.0)
    assert node.word("a1").warnings == ()
