"""Orders for a place that others have still: what is there is theirs, whatever was lost or never read."""

import msgspec
import pytest

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import SliceGone, SliceReady
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord, Tombstone

A1, A2 = AllocationId("a1"), AllocationId("a2")
WHOLE = (2, None, 0, 8)
SMALL = (0, "2g.10gb", 4, 2)


def _unmaking(booking, **more):
    """The record of a booking whose slice is given back unmade."""
    plain = {"devices": (DeviceRecord(),), "cause": "never made"}
    return SliceRecord(booking=booking, revision=2, phase="unmaking", **plain | more)


def _ordered_before(node, *orders):
    """Orders that a new run finds in the ledger, in this order, in place of those that were there."""
    for order in orders:
        subject = f"sluice.ledger.n1_example.{order.booking.allocation}"
        node.ledger.pop(subject, None)
        node.put(subject, order)


@pytest.mark.parametrize(
    ("after", "kind", "owner", "is_in_the_way"),
    [((A1,), "mps", "", False), ((), "mps", "", False), ((), "mps", "pod-2", True), ((), "compute", "", True)],
    ids=["never made: a promise", "the server of the home", "its own server", "an unknown process"],
)
def test_a_whole_gpu_that_was_given_back_unheard_is_not_kept_by_those_who_share_it(
    node, after, kind, owner, is_in_the_way
):
    """Their MPS server would be taken for its own, and keep the booking of a pod that has gone while they live."""
    node.serve(node.share("a1", WHOLE))
    ready = node.word("a1")
    whole = node.booking("a2", WHOLE, owner="pod-2")  # here before them, in a journal that is lost; or never made
    gpu, token = node.gpus[2], node.agent._in_flight._token
    revoke = msgspec.structs.replace(node.revoke(whole), after=after)
    assert node.own(node.order(revoke)) == [do.SaveJournal(token + 1, _unmaking(whole, after=after))]
    assert node.step(ev.JournalSaved(token + 1)) == [do.ListHolders(token + 2, gpu, str(gpu))]
    there = (
        ev.Holder(pid=7, owner="pod-1", name="train", kind="compute"),
        ev.Holder(pid=101, owner=owner, name="nvidia-cuda-mps-server", kind=kind),
    )
    stone = Tombstone(allocation=A2, request=whole.request, revision=2, cause="never made")
    listed = node.step(ev.HoldersListed(token + 2, there))
    assert listed == ([] if is_in_the_way else [do.SaveJournal(token + 3, stone)])
    if not is_in_the_way:
        node.happens(ev.JournalSaved(token + 3))
        assert isinstance(node.word("a2"), SliceGone)
    assert node.word("a1") == ready


def test_a_revoked_promise_takes_nothing_of_its_predecessor_when_the_journal_is_lost(node):
    """A tenant's slice would be said to be gone while its instance is there, and the next one be given its place."""
    booking, promised = node.booking("a1", SMALL), node.booking("a2", SMALL, owner="pod-2")
    node.serve(booking)
    ready = node.word("a1")
    (instance,) = node.hardware.read().gpus[0].instances
    node.lose_journal()
    _ordered_before(node, msgspec.structs.replace(node.revoke(promised), after=(A1,)), node.revoke(booking))
    node.begin()
    gpu, token, boot, step = node.gpus[0], node.agent._in_flight._token, node.backend.boot_id(), node.step
    never = _unmaking(promised, after=(A1,))
    made = (DeviceRecord(step="intended", gi_id=instance.gi_id, uuid=instance.uuid),)
    theirs = _unmaking(booking, devices=made, boot_id=boot, stale_tickets=(ready.ticket,), cause="pod gone")
    node.open()
    assert node.own(node.waiting) == [do.SaveJournal(token + 1, never), do.SaveJournal(token + 2, theirs)]
    node.waiting.clear()
    stone = Tombstone(allocation=A2, request=promised.request, revision=2, cause="never made")
    assert step(ev.JournalSaved(token + 1)) == [do.SaveJournal(token + 3, stone)]
    assert step(ev.JournalSaved(token + 3)) == []
    assert step(ev.JournalSaved(token + 2)) == [do.RemoveTicket(token + 4, ready.ticket)]
    theirs = msgspec.structs.replace(theirs, stale_tickets=())
    assert step(ev.TicketRemoved(token + 4)) == [do.SaveJournal(token + 5, theirs)]
    assert step(ev.JournalSaved(token + 5)) == [do.ListHolders(token + 6, gpu, instance.uuid)]
    assert step(ev.HoldersListed(token + 6, ())) == [
        do.DestroyComputeInstance(token + 7, gpu, instance.gi_id, instance.uuid)
    ]
    theirs = msgspec.structs.replace(theirs, devices=(DeviceRecord(step="intended", gi_id=instance.gi_id),))
    assert step(ev.ComputeInstanceDestroyed(token + 7)) == [do.SaveJournal(token + 8, theirs)]
    assert step(ev.JournalSaved(token + 8)) == [do.DestroyGpuInstance(token + 9, gpu, instance.gi_id, 4, 2)]
    theirs = msgspec.structs.replace(theirs, devices=(DeviceRecord(),))
    assert step(ev.GpuInstanceDestroyed(token + 9)) == [do.SaveJournal(token + 10, theirs)]
    stone = Tombstone(allocation=A1, request=booking.request, revision=2, cause="pod gone")
    assert step(ev.JournalSaved(token + 10)) == [do.SaveJournal(token + 11, stone)]


def test_a_surplus_share_is_given_back_without_ending_its_pod_on_the_other(node):
    """A pod that was granted two shares of one home would be ended when the one it does not use is revoked."""
    used, surplus = node.share("a1", SMALL), node.share("a2", SMALL)
    node.serve(used, surplus)
    ready = node.word("a1")
    daemon = node.mps.connect(501)
    node.own_done.clear()
    node.take_back(surplus)
    steps = [(type(step), getattr(step, "record", None)) for step in node.own_done]
    assert [(step, type(record)) for step, record in steps] == [
        (do.SaveJournal, SliceRecord),
        (do.RemoveTicket, type(None)),
        (do.SaveJournal, SliceRecord),
        (do.SaveJournal, SliceRecord),
        (do.SaveJournal, Tombstone),
    ]
    assert isinstance(node.word("a2"), SliceGone)
    assert (node.word("a1"), daemon.clients) == (ready, {501: "pod-1"})

    node.order(node.revoke(used))
    node.tick(1.0, times=5)
    assert isinstance(node.word("a1"), SliceGone)
    assert (daemon.clients, node.mps.homes, node.instances(0)) == ({}, {}, [])


def test_a_shared_whole_gpu_that_was_being_made_when_the_journal_was_lost_keeps_its_daemon(node):
    """A second daemon would be started beside it for the same tenants, and refuse them all."""
    first, second = node.booking("a1", WHOLE), node.share("a2", WHOLE, owner="pod-2")
    node.serve(first)
    node.order(node.revoke(first))
    node.order(node.grant(second, after=("a1",)))
    node.up_to(do.MakeTicket)
    daemons = node.mps.living()
    node.lose_journal()
    node.live()
    assert isinstance(node.word("a2"), SliceReady)
    assert node.mps.living() == daemons
