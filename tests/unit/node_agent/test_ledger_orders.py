"""What the ledger orders, instruction by instruction."""

import msgspec
import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadLast, Stream
from sluice.contracts.ids import AllocationId, Incarnation
from sluice.contracts.messages import ContainerDevices, DeviceState, NodeOpened, SliceGone, SliceReady
from sluice.contracts.ticket_paths import ticket_name
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord, TicketRecord, Tombstone

A1 = AllocationId("a1")


def test_a_grant_is_made_step_by_step_each_saved_before_the_next(node):
    """A user gets a slice that exists, was read back and can be found again after any crash."""
    booking = node.booking("a1", (0, "2g.10gb", 4, 2))
    token = node.agent._in_flight._token
    gpu = node.gpus[0]
    profile_id = next(p.profile_id for p in node.backend.read_gpu(gpu).profiles if p.name == "2g.10gb")
    uuid = "MIG-made"
    ticket = ticket_name(A1, node.run, 1)
    boot_id, step = node.backend.boot_id(), node.step
    intended = (DeviceRecord(step="intended"),)
    record = SliceRecord(booking=booking, revision=1, phase="making", devices=intended, boot_id=boot_id)
    assert node.own(node.order(node.grant(booking))) == [do.SaveJournal(token + 1, record)]
    assert step(ev.JournalSaved(token + 1)) == [do.CreateGpuInstance(token + 2, gpu, profile_id, 4, 2)]
    record = msgspec.structs.replace(record, devices=(DeviceRecord(step="intended", gi_id=9),))
    assert step(ev.GpuInstanceCreated(token + 2, 9)) == [do.SaveJournal(token + 3, record)]
    assert step(ev.JournalSaved(token + 3)) == [do.CreateComputeInstance(token + 4, gpu, 9)]
    record = msgspec.structs.replace(record, devices=(DeviceRecord(step="intended", gi_id=9, uuid=uuid),))
    assert step(ev.ComputeInstanceCreated(token + 4, uuid)) == [do.SaveJournal(token + 5, record)]
    assert step(ev.JournalSaved(token + 5)) == [do.VerifyInstance(token + 6, gpu, 9, profile_id, 4, 2, uuid)]
    record = msgspec.structs.replace(record, devices=(DeviceRecord(step="made", gi_id=9, uuid=uuid),), ticket=ticket)
    assert step(ev.InstanceVerified(token + 6)) == [do.SaveJournal(token + 7, record)]
    containers = (ContainerDevices(container="main", visible_devices=uuid, memory_mib=9984),)
    copy = TicketRecord(booking=booking, revision=1, boot_id=record.boot_id, devices=record.devices)
    assert step(ev.JournalSaved(token + 7)) == [do.MakeTicket(token + 8, ticket, copy, containers)]
    record = msgspec.structs.replace(record, phase="ready")
    assert step(ev.TicketMade(token + 8)) == [do.SaveJournal(token + 9, record)]
    address = subjects.slice_(node.name, A1)
    assert node.agent._outbox.kept(address) is None
    ready = node.agent.handle(ev.JournalSaved(token + 9), node.now)
    assert node.own(ready) == []
    assert ReadLast(Stream.STATE, address.subject) in ready
    assert node.agent._outbox.kept(address) == SliceReady(
        allocation=A1,
        request=booking.request,
        revision=1,
        ticket=ticket,
        devices=(DeviceState(gpu=gpu, profile="2g.10gb", start=4, size=2, uuid=uuid),),
        containers=containers,
    )


def test_a_revoke_removes_the_ticket_first_and_the_slice_last(node):
    """No container starts on a slice that is being destroyed, and its place is not assigned before it is gone."""
    booking = node.serve(node.booking("a1", (0, "2g.10gb", 4, 2)))
    gpu, ready = node.gpus[0], node.word("a1")
    uuid = ready.devices[0].uuid
    gi_id = node.hardware.read().gpus[0].instances[0].gi_id
    token = node.agent._in_flight._token
    made, step = node.agent._state.slices[A1].record, node.step
    record = msgspec.structs.replace(made, phase="unmaking", revision=2, cause="pod gone")
    assert node.own(node.order(node.revoke(booking))) == [do.SaveJournal(token + 1, record)]
    assert step(ev.JournalSaved(token + 1)) == [do.RemoveTicket(token + 2, ready.ticket)]
    record = msgspec.structs.replace(record, ticket="")
    assert step(ev.TicketRemoved(token + 2)) == [do.SaveJournal(token + 3, record)]
    assert step(ev.JournalSaved(token + 3)) == [do.ListHolders(token + 4, gpu, uuid)]
    assert step(ev.HoldersListed(token + 4, ())) == [do.DestroyComputeInstance(token + 5, gpu, gi_id, uuid)]
    record = msgspec.structs.replace(record, devices=(DeviceRecord(step="made", gi_id=gi_id),))
    assert step(ev.ComputeInstanceDestroyed(token + 5)) == [do.SaveJournal(token + 6, record)]
    assert step(ev.JournalSaved(token + 6)) == [do.DestroyGpuInstance(token + 7, gpu, gi_id, 4, 2)]
    record = msgspec.structs.replace(record, devices=(DeviceRecord(),))
    assert step(ev.GpuInstanceDestroyed(token + 7)) == [do.SaveJournal(token + 8, record)]
    stone = Tombstone(allocation=A1, request=booking.request, revision=2, cause="pod gone")
    assert step(ev.JournalSaved(token + 8)) == [do.SaveJournal(token + 9, stone)]
    assert step(ev.JournalSaved(token + 9)) == []
    kept = node.agent._outbox.kept(subjects.slice_(node.name, A1))
    assert kept == SliceGone(allocation=A1, request=booking.request, revision=2, cause="pod gone")


def test_a_revoke_of_something_unknown_is_answered_gone(node):
    """A grant that the agent never saw does not book its place for ever."""
    booking = node.booking("a1", (0, "2g.10gb", 4, 2))
    token = node.agent._in_flight._token
    first = node.own(node.order(node.revoke(booking, revision=5)))
    unmaking = SliceRecord(booking=booking, revision=5, phase="unmaking", devices=(DeviceRecord(),), cause="never made")
    assert first == [do.SaveJournal(token + 1, unmaking)]
    node.work()
    assert node.word("a1") == SliceGone(allocation=A1, request=booking.request, revision=5, cause="never made")


def test_nothing_is_done_before_the_node_is_opened_for_this_run(new_node):
    """After a broker was wiped, an agent never makes a slice on a place that another tenant still has."""
    new_node.begin()
    new_node.own_done.clear()
    new_node.order(new_node.grant(new_node.booking("a1", (0, "2g.10gb", 4, 2))))
    new_node.read_ledger()
    boot_id = new_node.backend.boot_id()
    head = subjects.head(new_node.name).subject
    for incarnation, run in ((new_node.incarnation, "other"), (Incarnation("0"), new_node.run)):
        opened = NodeOpened(node=new_node.name, incarnation=incarnation, boot_id=boot_id, agent_run=run)
        new_node.put(head, opened)
        new_node.read_ledger()
    new_node.work()
    assert new_node.own_done == []
    assert not new_node.agent.is_open
    new_node.open()
    new_node.work()
    assert isinstance(new_node.word("a1"), SliceReady)


def test_an_order_of_another_incarnation_is_not_carried_out(node):
    """What was decided in an earlier incarnation of the broker is decided again."""
    grant = msgspec.structs.replace(node.grant(node.booking("a1", (0, "2g.10gb", 4, 2))), incarnation=Incarnation("0"))
    assert node.own(node.order(grant)) == []
    assert node.agent.snapshot().slices == ()


def test_a_grant_waits_for_what_it_comes_after(node):
    """A preempted place is made again for its new owner as soon as it is free, and never before."""
    first = node.serve(node.booking("a1", (0, "3g.20gb", 4, 4)))
    second = node.booking("a2", (0, "4g.20gb", 0, 4), (0, "3g.20gb", 4, 4))
    node.obey(node.grant(second, after=("a1", "never-heard-of")))
    assert node.word("a2") is None
    assert [report.state for report in node.agent.snapshot().slices] == ["ready", "planned"]
    node.live()
    assert node.word("a2") is None
    node.gone(first)
    assert isinstance(node.word("a2"), SliceReady)
    assert node.instances() == [("3g.20gb", 4, 4), ("4g.20gb", 0, 4)]


def test_a_closed_slice_is_said_gone_with_an_end_and_its_tombstone_forgotten(make_node):
    node = make_node(tombstone_ttl_s=100.0)
    booking = node.booking("a1", (0, "2g.10gb", 4, 2))
    node.order(node.grant(booking))
    node.take_back(booking)
    out = node.order(node.closed(booking))
    assert [(w.message.closing, w.ttl_s) for w in out if hasattr(w, "ttl_s")] == [(True, 4 * 3600)]
    node.work()
    assert node.word("a1").closing
    assert node.agent._outbox.kept(subjects.slice_(node.name, A1)) is None
    assert len(node.agent._tombstones) == 1
    node.tick(101)
    assert len(node.agent._tombstones) == 0
    assert not [record for record in node.journal.records() if isinstance(record, Tombstone)]


def test_what_is_closed_once_more_is_said_gone_once_more_with_an_end(make_node):
    """A broker that lost its latest messages shows that of before, for ever: the end of it was published long ago."""
    node = make_node(closing_ttl_s=20, tombstone_ttl_s=100.0)
    booking = node.booking("a1", (0, "2g.10gb", 4, 2))
    node.order(node.grant(booking))
    node.take_back(booking)
    before = node.words[subjects.slice_(node.name, A1).subject]
    node.obey(node.closed(booking))
    assert node.word("a1").closing
    node.tick(30.0)
    node.words[subjects.slice_(node.name, A1).subject] = before
    node.open()
    assert not node.word("a1").closing

    node.obey(node.closed(booking))
    assert node.word("a1").closing


def test_a_generation_is_told_only_when_the_journal_holds_it(new_node):
    """A crash right after the news does not bring the same generation again with another content."""
    new_node.start()
    assert not new_node.agent.started
    with pytest.raises(RuntimeError, match="not been read yet"):
        new_node.agent.snapshot()
    new_node.work(own_max=1)
    assert new_node.agent.started


def test_a_closing_word_that_the_broker_forgot_is_said_again(node):
    """An allocator that waits for the end of a slice observes it, also after a wipe."""
    booking = node.booking("a1", (0, "2g.10gb", 4, 2))
    node.order(node.revoke(booking))
    node.obey(node.closed(booking))
    assert node.word("a1").closing
    node.words.clear()
    node.read_ledger()
    node.work()
    assert node.word("a1").closing
