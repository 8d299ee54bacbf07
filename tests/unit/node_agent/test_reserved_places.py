"""Orders for a place that others have still: what is there is theirs, whatever was lost or never read."""

import msgspec
import pytest

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import SliceGone, SliceReady
from sluice_node_agent.core.events import (
    ComputeInstanceDestroyed,
    GpuInstanceDestroyed,
    Holder,
    HoldersListed,
    JournalSaved,
    TicketRemoved,
)
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ListHolders,
    MakeTicket,
    RemoveTicket,
    SaveJournal,
)
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord, Tombstone
from sluice_node_agent.simulated.hardware_file import Process

A1, A2 = AllocationId("a1"), AllocationId("a2")
WHOLE = (2, None, 0, 8)
SMALL = (0, "2g.10gb", 4, 2)


def _own(instructions):
    return [i for i in instructions if hasattr(i, "token")]


def _ordered_before(node, *orders):
    """Orders that a new life finds in the ledger, in this order, in place of those that were there."""
    for order in orders:
        subject = f"sluice.ledger.n1_example.{order.booking.allocation}"
        node.ledger.pop(subject, None)
        node.put(subject, order)


def test_a_promise_that_was_revoked_unread_is_gone_while_those_before_it_live_on(node):
    """The MPS server of other tenants would be taken for its own, and its place kept for as long as they live."""
    node.live()
    tenant = node.share("a1", WHOLE)
    node.order(node.grant(tenant))
    node.work()
    ready = node.word("a1")
    promised = node.booking("a2", WHOLE, owner="pod-2")
    gpu, token = node.gpus[2], node.agent._in_flight._token
    record = SliceRecord(
        booking=promised, revision=2, phase="unmaking", devices=(DeviceRecord(),), after=(A1,), cause="never made"
    )
    revoke = msgspec.structs.replace(node.revoke(promised), after=(A1,))
    assert _own(node.order(revoke)) == [SaveJournal(token + 1, record)]
    assert _own(node.agent.handle(JournalSaved(token + 1), node.now)) == [ListHolders(token + 2, gpu, str(gpu))]
    there = (
        Holder(pid=7, owner="pod-1", name="train", kind="compute"),
        Holder(pid=101, owner="", name="nvidia-cuda-mps-server", kind="mps"),
    )
    stone = Tombstone(allocation=A2, request=promised.request, revision=2, cause="never made")
    listed = node.agent.handle(HoldersListed(token + 2, there), node.now)
    assert _own(listed) == [SaveJournal(token + 3, stone)]
    node.handle(JournalSaved(token + 3))
    node.work()
    assert isinstance(node.word("a2"), SliceGone)
    assert node.word("a1") == ready


@pytest.mark.parametrize(
    ("kind", "owner", "is_in_the_way"),
    [("mps", "", False), ("mps", "pod-2", True), ("compute", "", True)],
    ids=["the server of the home", "its own server", "an unknown process"],
)
def test_a_whole_gpu_that_was_given_back_unheard_is_not_kept_by_those_who_share_it_since(
    node, kind, owner, is_in_the_way
):
    """Their MPS server would keep the booking of a pod that has long gone, for as long as they live."""
    node.live()
    node.order(node.grant(node.share("a1", WHOLE)))
    node.work()
    ready = node.word("a1")
    whole = node.booking("a2", WHOLE, owner="pod-2")  # it was here before them, and the journal that said so is lost
    gpu, token = node.gpus[2], node.agent._in_flight._token
    record = SliceRecord(booking=whole, revision=2, phase="unmaking", devices=(DeviceRecord(),), cause="never made")
    assert _own(node.order(node.revoke(whole))) == [SaveJournal(token + 1, record)]
    assert _own(node.agent.handle(JournalSaved(token + 1), node.now)) == [ListHolders(token + 2, gpu, str(gpu))]
    there = (
        Holder(pid=7, owner="pod-1", name="train", kind="compute"),
        Holder(pid=101, owner=owner, name="nvidia-cuda-mps-server", kind=kind),
    )
    stone = Tombstone(allocation=A2, request=whole.request, revision=2, cause="never made")
    listed = node.agent.handle(HoldersListed(token + 2, there), node.now)
    assert _own(listed) == ([] if is_in_the_way else [SaveJournal(token + 3, stone)])
    assert node.word("a1") == ready


def test_a_revoked_promise_takes_nothing_of_its_predecessor_when_the_journal_is_lost(node):
    """A tenant's slice would be said to be gone while its instance is there, and the next one be given its place."""
    node.live()
    booking, promised = node.booking("a1", SMALL), node.booking("a2", SMALL, owner="pod-2")
    node.order(node.grant(booking))
    node.work()
    ready = node.word("a1")
    (instance,) = node.hardware.read().gpus[0].instances
    node.lose_journal()
    after = msgspec.structs.replace(node.revoke(promised), after=(A1,))
    _ordered_before(node, after, node.revoke(booking))
    node.start()
    node.work()
    gpu, token, boot = node.gpus[0], node.agent._in_flight._token, node.backend.boot_id()

    def step(event):
        return _own(node.agent.handle(event, node.now))

    never = SliceRecord(
        booking=promised, revision=2, phase="unmaking", devices=(DeviceRecord(),), after=(A1,), cause="never made"
    )
    theirs = SliceRecord(
        booking=booking,
        revision=2,
        phase="unmaking",
        devices=(DeviceRecord(step="intended", gi_id=instance.gi_id, uuid=instance.uuid),),
        boot_id=boot,
        stale_tickets=(ready.ticket,),
        cause="pod gone",
    )
    node.open()
    assert _own(node.waiting) == [SaveJournal(token + 1, never), SaveJournal(token + 2, theirs)]
    node.waiting.clear()
    stone = Tombstone(allocation=A2, request=promised.request, revision=2, cause="never made")
    assert step(JournalSaved(token + 1)) == [SaveJournal(token + 3, stone)]
    assert step(JournalSaved(token + 3)) == []
    assert step(JournalSaved(token + 2)) == [RemoveTicket(token + 4, ready.ticket)]
    theirs = msgspec.structs.replace(theirs, stale_tickets=())
    assert step(TicketRemoved(token + 4)) == [SaveJournal(token + 5, theirs)]
    assert step(JournalSaved(token + 5)) == [ListHolders(token + 6, gpu, instance.uuid)]
    assert step(HoldersListed(token + 6, ())) == [DestroyComputeInstance(token + 7, gpu, instance.gi_id, instance.uuid)]
    theirs = msgspec.structs.replace(theirs, devices=(DeviceRecord(step="intended", gi_id=instance.gi_id),))
    assert step(ComputeInstanceDestroyed(token + 7)) == [SaveJournal(token + 8, theirs)]
    assert step(JournalSaved(token + 8)) == [DestroyGpuInstance(token + 9, gpu, instance.gi_id, 4, 2)]
    theirs = msgspec.structs.replace(theirs, devices=(DeviceRecord(),))
    assert step(GpuInstanceDestroyed(token + 9)) == [SaveJournal(token + 10, theirs)]
    stone = Tombstone(allocation=A1, request=booking.request, revision=2, cause="pod gone")
    assert step(JournalSaved(token + 10)) == [SaveJournal(token + 11, stone)]


def test_a_promise_that_was_carried_out_waits_for_its_own_processes_although_the_journal_is_lost(node):
    """A GPU would be given to the next tenant while the pod that had it by promise still computes there."""
    node.live()
    first, second = node.booking("a1", WHOLE), node.booking("a2", WHOLE, owner="pod-2")
    node.order(node.grant(first))
    node.work()
    node.order(node.grant(second, after=("a1",)))
    node.order(node.revoke(first))
    node.work()
    assert isinstance(node.word("a2"), SliceReady)
    with node.hardware.changing() as hardware:
        hardware.gpus[2].processes.append(Process(pid=7, owner="pod-2", device=str(node.gpus[2])))
    node.order(msgspec.structs.replace(node.revoke(second), after=(A1,)))
    while node.tickets.names():
        node.work(own_max=1)
    node.lose_journal()
    node.words.clear()
    node.live()
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert not isinstance(node.word("a2"), SliceGone)
    with node.hardware.changing() as hardware:
        hardware.gpus[2].processes.clear()
    node.tick(60.0)
    assert isinstance(node.word("a2"), SliceGone)


def test_a_surplus_share_is_given_back_without_ending_its_pod_on_the_other(node):
    """A pod that was granted two shares of one home would be ended when the one it does not use is revoked."""
    node.live()
    used, surplus = node.share("a1", SMALL), node.share("a2", SMALL)
    for booking in (used, surplus):
        node.order(node.grant(booking))
    node.work()
    ready = node.word("a1")
    (daemon,) = node.mps.living()
    daemon.clients[501] = "pod-1"
    node.mps.enter(501, daemon.order.device, "pod-1")
    node.own_done.clear()
    node.order(node.revoke(surplus))
    node.work()
    steps = [(type(step), getattr(step, "record", None)) for step in node.own_done]
    assert [(step, type(record)) for step, record in steps] == [
        (SaveJournal, SliceRecord),
        (RemoveTicket, type(None)),
        (SaveJournal, SliceRecord),
        (SaveJournal, SliceRecord),
        (SaveJournal, Tombstone),
    ]
    assert isinstance(node.word("a2"), SliceGone)
    assert (node.word("a1"), daemon.clients) == (ready, {501: "pod-1"})

    node.order(node.revoke(used))
    for _ in range(5):
        node.tick(1.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert (daemon.clients, node.mps.homes, node.instances(0)) == ({}, {}, [])


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("revoked", [False, True], ids=["granted", "revoked"])
@pytest.mark.parametrize("made", ["half", "whole"])
def test_what_was_made_of_a_promise_when_the_journal_was_lost_is_in_nobodys_way(node, shared, revoked, made):
    """Its instance would be orphaned, and block the very slice that it was created for."""
    node.live()
    first = node.booking("a1", (0, "3g.20gb", 4, 4))
    at = (0, "2g.10gb", 4, 2)
    second = node.share("a2", at, owner="pod-2") if shared else node.booking("a2", at, owner="pod-2")
    node.order(node.grant(first))
    node.work()
    node.order(node.revoke(first))
    node.order(node.grant(second, after=("a1",)))
    while not any(isinstance(each, CreateComputeInstance) for each in node.waiting):
        assert not node.work(own_max=1)
    if made == "whole":
        assert not node.work(own_max=1)
    (before,) = node.hardware.read().gpus[0].instances
    assert bool(before.uuid) == (made == "whole")
    assert isinstance(node.word("a1"), SliceGone)
    node.lose_journal()
    if revoked:
        node.order(msgspec.structs.replace(node.revoke(second), after=(A1,)))
    node.live()
    assert isinstance(node.word("a2"), SliceGone if revoked else SliceReady), node.word("a2")
    there = [(instance.start, instance.uuid) for instance in node.hardware.read().gpus[0].instances]
    assert [start for start, _ in there] == ([] if revoked else [4])
    assert revoked or made == "half" or there == [(4, before.uuid)]


def test_a_shared_whole_gpu_that_was_being_made_when_the_journal_was_lost_keeps_its_daemon(node):
    """A second daemon would be started beside it for the same tenants, and refuse them all."""
    node.live()
    first, second = node.booking("a1", WHOLE), node.share("a2", WHOLE, owner="pod-2")
    node.order(node.grant(first))
    node.work()
    node.order(node.revoke(first))
    node.order(node.grant(second, after=("a1",)))
    while not any(isinstance(each, MakeTicket) for each in node.waiting):
        assert not node.work(own_max=1)
    daemons = node.mps.living()
    node.lose_journal()
    node.live()
    assert isinstance(node.word("a2"), SliceReady)
    assert node.mps.living() == daemons


def test_a_promise_is_not_carried_out_for_what_its_pod_has_by_another_grant(node):
    """A promise in another home would be carried out for a pod whose first grant is being made."""
    lived_in, mine = (1, "3g.20gb", 4, 4), (0, "3g.20gb", 4, 4)
    others = node.share("a1", lived_in, owner="pod-1", namespace="other")
    here = node.share("a2", mine, owner="pod-2")
    there = node.share("a3", lived_in, owner="pod-2")
    promised = msgspec.structs.replace(there, devices=(*here.devices, *there.devices))
    node.live()
    node.order(node.grant(others))
    node.order(node.grant(promised, after=("a1",)))
    node.order(node.grant(here))
    node.work()
    node.lose_journal()
    node.tickets.remove(node.word("a2").ticket)
    node.live()
    for _ in range(3):
        node.tick(10.0)
    assert isinstance(node.word("a2"), SliceReady)
    assert node.word("a3") is None
    ready = [each.booking.allocation for each in node.agent.snapshot().slices if each.state == "ready"]
    assert ready == ["a1", "a2"]
