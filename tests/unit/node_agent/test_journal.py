"""What the journal keeps, and when it is not trusted."""

import pytest

from sluice.contracts.ids import AllocationId, RequestId
from sluice_node_agent.core.events import MakeTicket
from sluice_node_agent.core.records import Forgotten, NodeRecord, Tombstone
from sluice_node_agent.shell.journal import Journal, JournalError
from sluice_node_agent.shell.tickets import Tickets

NODE = NodeRecord(node="n1", boot_id="b", generation_upto=1000)


def _stone(number, revision=1):
    name = AllocationId(f"a{number}")
    return Tombstone(allocation=name, request=RequestId("r"), revision=revision, cause="pod gone")


@pytest.fixture
def directory(tmp_path):
    """A journal with a node record and three tombstones, closed."""
    journal = Journal(tmp_path / "n1", "n1")
    assert journal.is_new
    journal.append([NODE, _stone(1)])
    journal.append([_stone(2), _stone(3), _stone(1, revision=2), _stone(4), Forgotten(allocation="a4")])
    journal.close()
    return tmp_path / "n1"


def _records(directory):
    journal = Journal(directory, "n1")
    journal.close()
    return journal


def test_the_last_record_of_everything_is_found_again(directory):
    """An agent that restarts knows where it was."""
    again = _records(directory)
    assert again.records() == (NODE, _stone(2), _stone(3), _stone(1, revision=2))
    assert (again.problem, again.is_new) == ("", False)


def test_what_a_crash_tore_off_is_dropped(directory):
    """A power cut while writing does not cost the journal."""
    path = directory / "journal"
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        again = _records(directory)
        assert again.problem == ""
        assert len(again.records()) >= 3


def test_any_flipped_bit_is_noticed(directory):
    """An older or false record is never taken for the last one."""
    path = directory / "journal"
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        again = _records(directory)
        assert again.problem, at
        assert again.is_new
        assert again.records() == (NodeRecord(node="n1", boot_id="", generation_upto=0),)
        assert (directory / "journal.distrusted").read_bytes() == damaged


def test_an_emptied_journal_is_not_a_new_one(directory):
    """A lost journal is said to be lost."""
    (directory / "journal").write_bytes(b"")
    assert _records(directory).problem


def test_the_file_does_not_grow_with_history(tmp_path):
    """A node that runs for years does not fill its disk."""
    journal = Journal(tmp_path / "n1", "n1")
    for number in range(40):
        journal.append([_stone(1, revision=number * 100 + n) for n in range(100)])
    journal.append([_stone(2)])
    assert (tmp_path / "n1" / "journal").stat().st_size < 200_000
    expected = journal.records()
    journal.close()
    assert _records(tmp_path / "n1").records() == expected
    assert expected[-2:] == (_stone(1, revision=3999), _stone(2))


def test_a_second_agent_of_the_node_is_refused(directory):
    """Two agents never work on one node."""
    first = Journal(directory, "n1")
    with pytest.raises(JournalError, match="another agent of node n1 is running"):
        Journal(directory, "n1")
    first.close()
    Journal(directory, "n1").close()


def test_the_journal_of_another_node_is_refused(directory):
    """A copied data folder does not make one node act as another."""
    with pytest.raises(JournalError, match="of node n1, not of n2"):
        Journal(directory, "n2")
    assert _records(directory).records()[0] == NODE


def test_tickets_are_there_whole_or_not_at_all(tmp_path):
    """A container starts with a ticket or it does not start."""
    tickets = Tickets(tmp_path / "t")
    assert tickets.names() == ()
    order = MakeTicket(1, "a1.run.1", AllocationId("a1"), "pod-1", ())
    (tmp_path / "t" / ".a1.run.1").mkdir(parents=True)
    tickets.make(order)
    tickets.make(order)
    assert tickets.names() == ("a1.run.1",)
    assert (tmp_path / "t" / "a1.run.1" / "slice.json").exists()
    tickets.remove("a1.run.1")
    tickets.remove("a1.run.1")
    assert list((tmp_path / "t").iterdir()) == []
    with pytest.raises(OSError, match="no ticket's name"):
        tickets.remove("../../etc")
