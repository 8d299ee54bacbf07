"""Journal and ledger lost at once: what tickets prove continues, and what they only claim is a warning."""

import json
import shutil

import pytest
from msgspec.structs import replace

from sluice.contracts.ids import NodeName
from sluice_node_agent.core import journal_records
from sluice_node_agent.core.instructions import MakeTicket, RemoveTicket, SaveJournal
from sluice_node_agent.shell.tickets import tickets as document
from sluice_node_agent.shell.tickets.tickets import pack, unpack

SMALL = (0, "2g.10gb", 4, 2)
OTHER = (1, "2g.10gb", 0, 2)
WHOLE = (2, None, 0, 8)


def reported(node):
    return {(report.booking.allocation, report.revision, report.state) for report in node.agent.snapshot().slices}


def document_of(node, ticket):
    return node.tmp_path / "tickets" / ticket / "slice.json"


def change(node, ticket, **changes):
    """A ticket's record says something else, and its checksum is right."""
    place = document_of(node, ticket)
    record = replace(unpack(place.read_bytes()), **changes)
    place.write_bytes(pack(MakeTicket(1, ticket, record, ())))


def test_a_running_pods_slice_is_known_again_by_its_ticket_alone(node):
    booking = node.serve(node.booking("a1", SMALL))
    before = node.word("a1")
    (device,) = before.devices
    node.lose_both()
    instructions = node.own(node.start())
    key = instructions[0].record.unclaimed
    assert key == (journal_records.UnclaimedInstance(gpu=device.gpu, gi_id=key[0].gi_id, uuid=device.uuid),)
    boot_id = node.backend.boot_id()
    known = {"boot_id": boot_id, "generation_upto": node.config.generation_block, "unclaimed": key}
    made = journal_records.DeviceRecord(step="made", gi_id=key[0].gi_id, uuid=device.uuid)
    ready = {"phase": "ready", "devices": (made,), "boot_id": boot_id, "ticket": before.ticket}
    assert instructions == [
        SaveJournal(1, journal_records.NodeRecord(node=node.name, tickets=(before.ticket,), **known)),
        SaveJournal(2, journal_records.SliceRecord(booking=booking, revision=1, **ready)),
    ]
    node.work()
    assert reported(node) == {("a1", 1, "ready")}
    assert node.agent.snapshot().doubtful_tickets == ()
    assert node.word("a1") == before
    node.own_done.clear()
    node.open()
    node.work()
    assert node.own_done == []
    node.gone(booking)
    assert (node.instances(0), node.tickets.names()) == ([], ())


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_a_crash_half_way_silences_no_ticket(node, saved):
    """The slices that were not taken over yet would be foreign for ever."""
    node.serve(node.share("a1", SMALL), node.booking("a2", OTHER), node.booking("a3", WHOLE))
    before = [node.word(name) for name in ("a1", "a2", "a3")]
    node.lose_both()
    node.start()
    assert not node.work(own_max=saved)  # what is here, a home, the first slice
    node.live()
    assert reported(node) == {("a1", 1, "ready"), ("a2", 1, "ready"), ("a3", 1, "ready")}
    assert [node.word(name) for name in ("a1", "a2", "a3")] == before
    assert node.mps.started == 1


def false_record(node, known, damage):
    """What a ticket's record says instead, with the right checksum, and nothing else is wrong with the ticket."""
    return {
        "of another node": {"booking": replace(known.booking, node=NodeName("n2.example"))},
        "of another allocation": {"booking": node.booking("a9", SMALL)},
        "of another place": {"booking": node.booking("a1", (0, "2g.10gb", 0, 2))},
        "of no device": {"devices": ()},
        "half made": {"devices": (journal_records.DeviceRecord(step="intended", gi_id=9),)},
    }[damage]


def spoil(node, ticket, damage):
    place = document_of(node, ticket)
    said = place.read_bytes()
    match damage:
        case "old":
            kept = {key: json.loads(said)[key] for key in ("allocation", "owner", "containers")}
            place.write_text(json.dumps(kept))
        case "flipped":
            place.write_bytes(said.replace(b'"revision":1', b'"revision":3'))
        case "torn":
            place.write_bytes(said[:100])
        case "huge":
            place.write_bytes(b" " * (document.DOCUMENT_MAX + 1))
        case "a link":
            place.rename(node.tmp_path / "elsewhere")
            place.symlink_to(node.tmp_path / "elsewhere")
        case "missing":
            place.unlink()
        case _:
            change(node, ticket, **false_record(node, unpack(said), damage))


BAD = {
    "of another node": "it is of node n2.example",
    "of another allocation": "it tells of a9, for which it was not made",
    "of another place": "is not the 2g.10gb at",
    "of no device": "it books 1 devices and tells of 0",
    "half made": "it lists a device that was not created",
    "old": "it was written by a version that kept no record in tickets",
    "flipped": "its record does not match its checksum",
    "torn": "it holds no record that this version knows",
    "huge": "it is larger than",
    "a link": "it cannot be read",
    "missing": "it cannot be read: No such file or directory",
}


@pytest.mark.parametrize(("damage", "why"), BAD.items(), ids=BAD)
def test_a_ticket_that_proves_nothing_is_told_and_changes_nothing(node, damage, why):
    """An instance would be taken for another's; or a person never learn that a pod's slice is in doubt."""
    node.serve(node.booking("a1", SMALL))
    (ticket,) = node.tickets.names()
    there = node.instances(0)
    node.lose_both()
    spoil(node, ticket, damage)
    node.live()
    snapshot = node.agent.snapshot()
    assert (snapshot.slices, snapshot.doubtful_tickets) == ((), (ticket,))
    (sentence,) = [each for each in snapshot.warnings if ticket in each]
    assert sentence.startswith(f"ticket {ticket} is not believed: ")
    assert why in sentence
    node.tick(60.0, times=3)
    assert (node.instances(0), node.tickets.names()) == (there, (ticket,))
    assert [type(each) for each in node.own_done if isinstance(each, RemoveTicket)] == []


@pytest.mark.parametrize("end", ["rebooted", "device gone", "half removed"])
def test_a_ticket_of_what_is_not_there_any_more_is_removed(node, end):
    """A container would start with a device that is not there, and tickets of long gone pods fill the node."""
    node.serve(node.booking("a1", SMALL), node.booking("a2", OTHER))
    ticket, folder = node.word("a1").ticket, node.tmp_path / "tickets"
    shutil.rmtree(folder / node.word("a2").ticket)
    node.lose_both()
    match end:
        case "rebooted":
            node.hardware.reboot()
        case "device gone":
            node.lose_instances()
        case "half removed":
            (folder / ticket).rename(folder / f".{ticket}")
    node.live()
    assert node.agent.snapshot().doubtful_tickets == ()
    assert node.tickets.names() == ()
    assert [each.ticket for each in node.own_done if isinstance(each, RemoveTicket)] == [ticket]


def test_of_two_tickets_that_name_one_instance_only_one_is_believed(node):
    node.serve(node.booking("a1", SMALL), node.booking("a2", OTHER, owner="pod-2"))
    mine, theirs = node.word("a1").ticket, node.word("a2").ticket
    node.lose_both()
    copied = unpack(document_of(node, mine).read_bytes())
    change(node, theirs, booking=node.booking("a2", SMALL, owner="pod-2"), devices=copied.devices)
    node.live()
    assert {each[0] for each in reported(node)} in ({"a1"}, {"a2"})
    assert len(node.agent.snapshot().doubtful_tickets) == 1
    assert len(node.instances(0)) == len(node.instances(1)) == 1


GOLDEN = (
    b'{"allocation":"a1","owner":"pod-1","containers":[],"record":{"booking":{"allocation":"a1","request":"r",'
    b'"request_revision":1,"source":"folder","owner":"pod-1","namespace":"default","name":"pod","node":"n1.example",'
    b'"devices":[{"container":"main","gpu":"GPU-1","profile":"2g.10gb","start":4,"size":2}]},"revision":1,'
    b'"boot_id":"boot-1","devices":[{"step":"made","gi_id":9,"uuid":"MIG-1","daemon_restarts":0,"found":false}],'
    b'"counts":[],"unknown":1},"checksum":"fe48bc1a"}\n'
)
"""As the first version wrote it that kept a record in tickets, and a field that a later one may add."""


def test_what_a_ticket_says_is_read_by_the_next_version():
    """An upgrade during an outage would turn every running pod's instance into a foreign one."""
    read = unpack(GOLDEN)
    assert (read.booking.allocation, read.revision, read.boot_id) == ("a1", 1, "boot-1")
    assert read.devices == (journal_records.DeviceRecord(step="made", gi_id=9, uuid="MIG-1"),)


def test_a_journal_that_is_whole_is_asked_and_no_ticket(node):
    """A copied ticket would become a slice."""
    node.serve(node.booking("a1", SMALL))
    ticket = node.word("a1").ticket
    shutil.copytree(node.tmp_path / "tickets" / ticket, node.tmp_path / "tickets" / f"{ticket}9")
    node.live()
    assert reported(node) == {("a1", 1, "ready")}
    assert node.agent.snapshot().warnings == ()
