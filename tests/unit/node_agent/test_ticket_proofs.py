"""Journal and ledger lost at once: what tickets prove continues, and what they only claim is a warning."""

import json
import shutil

import pytest
from msgspec.structs import replace

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import SliceGone
from sluice_node_agent.core import journal_records
from sluice_node_agent.core.instructions import RemoveTicket, SaveJournal
from sluice_node_agent.shell.tickets import tickets as document
from sluice_node_agent.shell.tickets.tickets import pack, unpack

SMALL = (0, "2g.10gb", 4, 2)
OTHER = (1, "2g.10gb", 0, 2)
WHOLE = (2, None, 0, 8)


def own(instructions):
    return [each for each in instructions if hasattr(each, "token")]


def reported(node):
    return {(report.booking.allocation, report.revision, report.state) for report in node.agent.snapshot().slices}


def document_of(node, ticket):
    return node.tmp_path / "tickets" / ticket / "slice.json"


def change(node, ticket, **record):
    """A ticket's record says something else, and its checksum is right."""
    place = document_of(node, ticket)
    known = unpack(place.read_bytes())
    order = _Order(replace(known, **record))
    place.write_bytes(pack(order))


class _Order:
    def __init__(self, record):
        self.record, self.containers = record, ()
        self.allocation, self.owner = record.booking.allocation, record.booking.owner


def test_a_running_pods_slice_is_known_again_by_its_ticket_alone(node):
    booking = node.booking("a1", SMALL)
    node.serve(booking)
    before = node.word("a1")
    (device,) = before.devices
    node.lose_both()
    instructions = own(node.start())
    key = instructions[0].record.unclaimed
    assert key == (journal_records.UnclaimedInstance(gpu=device.gpu, gi_id=key[0].gi_id, uuid=device.uuid),)
    boot_id = node.backend.boot_id()
    assert instructions == [
        SaveJournal(
            1,
            journal_records.NodeRecord(
                node=node.name, boot_id=boot_id, generation_upto=node.config.generation_block, unclaimed=key,
                tickets=(before.ticket,),
            ),
        ),
        SaveJournal(
            2,
            journal_records.SliceRecord(
                booking=booking,
                revision=1,
                phase="ready",
                devices=(journal_records.DeviceRecord(step="made", gi_id=key[0].gi_id, uuid=device.uuid),),
                boot_id=boot_id,
                ticket=before.ticket,
            ),
        ),
    ]  # fmt: skip
    node.work()
    assert reported(node) == {("a1", 1, "ready")}
    assert node.agent.snapshot().doubtful_tickets == ()
    assert node.word("a1") == before
    node.own_done.clear()
    node.open()
    node.work()
    assert node.own_done == []
    node.take_back(booking)
    assert isinstance(node.word("a1"), SliceGone)
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


def _of_another_node(node, ticket):
    booking = unpack(document_of(node, ticket).read_bytes()).booking
    change(node, ticket, booking=replace(booking, node=NodeName("n2.example")))
    return "it is of node n2.example"


def _of_another_allocation(node, ticket):
    change(node, ticket, booking=node.booking("a9", SMALL))
    return "it tells of a9, for which it was not made"


def _of_another_place(node, ticket):
    change(node, ticket, booking=node.booking("a1", (0, "2g.10gb", 0, 2)))
    return "is not the 2g.10gb at"


def _of_no_device(node, ticket):
    change(node, ticket, devices=())
    return "it books 1 devices and tells of 0"


def _half_made(node, ticket):
    change(node, ticket, devices=(journal_records.DeviceRecord(step="intended", gi_id=9),))
    return "it lists a device that was not created"


def _old(node, ticket):
    place = document_of(node, ticket)
    said = json.loads(place.read_bytes())
    place.write_text(json.dumps({key: said[key] for key in ("allocation", "owner", "containers")}))
    return "it was written by a version that kept no record in tickets"


def _flipped(node, ticket):
    place = document_of(node, ticket)
    place.write_bytes(place.read_bytes().replace(b'"revision":1', b'"revision":3'))
    return "its record does not match its checksum"


def _torn(node, ticket):
    place = document_of(node, ticket)
    place.write_bytes(place.read_bytes()[:100])
    return "it holds no record that this version knows"


def _huge(node, ticket):
    document_of(node, ticket).write_bytes(b" " * (document.DOCUMENT_MAX + 1))
    return "it is larger than"


def _a_link(node, ticket):
    place = document_of(node, ticket)
    place.rename(node.tmp_path / "elsewhere")
    place.symlink_to(node.tmp_path / "elsewhere")
    return "it cannot be read"


def _missing(node, ticket):
    document_of(node, ticket).unlink()
    return "it cannot be read: No such file or directory"


BAD = [
    _of_another_node, _of_another_allocation, _of_another_place, _of_no_device, _half_made, _old, _flipped, _torn,
    _huge, _a_link, _missing,
]  # fmt: skip


@pytest.mark.parametrize("spoil", BAD)
def test_a_ticket_that_proves_nothing_is_told_and_changes_nothing(node, spoil):
    """Somebody's instance would be taken for another's; or a person never learn that a pod's slice is in doubt."""
    node.serve(node.booking("a1", SMALL))
    (ticket,) = node.tickets.names()
    there = node.instances(0)
    node.lose_both()
    why = spoil(node, ticket)
    node.live()
    snapshot = node.agent.snapshot()
    assert (snapshot.slices, snapshot.doubtful_tickets) == ((), (ticket,))
    (sentence,) = [each for each in snapshot.warnings if ticket in each]
    assert sentence.startswith(f"ticket {ticket} is not believed: ")
    assert why in sentence
    node.tick(60.0, times=3)
    assert (node.instances(0), node.tickets.names()) == (there, (ticket,))
    assert [type(each) for each in node.own_done if isinstance(each, RemoveTicket)] == []


def _rebooted(node, _ticket):
    with node.hardware.changing() as hardware:
        hardware.boot_id = "another"
        for gpu in hardware.gpus:
            gpu.instances.clear()


def _device_gone(node, _ticket):
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
        hardware.gpus[1].processes.clear()


def _half_removed(node, ticket):
    (node.tmp_path / "tickets" / ticket).rename(node.tmp_path / "tickets" / f".{ticket}")


@pytest.mark.parametrize("end", [_rebooted, _device_gone, _half_removed])
def test_a_ticket_of_what_is_not_there_any_more_is_removed(node, end):
    """A container would start with a device that is not there, and tickets of long gone pods fill the node."""
    node.serve(node.booking("a1", SMALL), node.booking("a2", OTHER))
    ticket = node.word("a1").ticket
    shutil.rmtree(node.tmp_path / "tickets" / node.word("a2").ticket)
    node.lose_both()
    end(node, ticket)
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
    """A ticket that somebody copied would become a slice."""
    node.serve(node.booking("a1", SMALL))
    ticket = node.word("a1").ticket
    shutil.copytree(node.tmp_path / "tickets" / ticket, node.tmp_path / "tickets" / f"{ticket}9")
    node.live()
    assert reported(node) == {("a1", 1, "ready")}
    assert node.agent.snapshot().warnings == ()
