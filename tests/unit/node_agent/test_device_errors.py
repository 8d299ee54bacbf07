"""When devices refuse, vanish, or are used by another program."""

import msgspec
import pytest
from factories.gpus.admin_layouts import CHANGING

from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord

TWO = ((0, "3g.20gb", 4, 4), (1, "2g.10gb", 4, 2))


DESTROYING = (do.DestroyComputeInstance, do.DestroyGpuInstance)
CI0, GI0, CI1, GI1 = ((kind, gpu) for gpu in (0, 1) for kind in DESTROYING)


@pytest.mark.parametrize(
    ("kind", "gpu", "undone"),
    [
        (do.CreateGpuInstance, 0, []),
        (do.CreateComputeInstance, 0, [GI0]),
        (do.VerifyInstance, 0, [CI0, GI0]),
        (do.CreateGpuInstance, 1, [CI0, GI0]),
        (do.CreateComputeInstance, 1, [GI1, CI0, GI0]),
        (do.MakeTicket, None, [CI1, GI1, CI0, GI0]),
    ],
)
def test_a_failure_at_any_step_is_undone_in_reverse(node, kind, gpu, undone):
    """tensor-fusion #700: a slice that could not be created leaves nothing on any GPU, and the user gets the reason."""
    node.order(node.grant(node.booking("a1", *TWO)))
    refused = node.up_to(kind, gpu=gpu)
    node.refused.append(kind)
    answer = node.carry_out(refused)
    node.own_done.clear()
    node.happens(answer)
    steps = [(type(step), node.gpus.index(step.gpu)) for step in node.own_done if isinstance(step, CHANGING)]
    assert steps == undone
    assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ())
    word = node.says("a1", SliceFailed)
    assert word.message == ("No space left on device" if kind is do.MakeTicket else "refused by the test")
    node.gone(node.booking("a1", *TWO))


def test_what_cannot_be_made_at_all_fails_without_touching_a_gpu(node):
    wrong = [(0, "9g.90gb", 0, 1), (2, "1g.5gb", 0, 1), (0, None, 0, 8)]
    for number, device in enumerate(wrong):
        node.own_done.clear()
        node.serve(node.booking(f"a{number}", device))
        assert isinstance(node.word(f"a{number}"), SliceFailed)
        assert not [i for i in node.own_done if isinstance(i, do.GpuInstruction)]


def test_a_slice_in_use_is_tried_ever_more_slowly_then_quarantined_and_freed_when_it_can_be(make_node):
    """A tenant that does not let go keeps the place booked, and people learn of it."""
    node = make_node(quarantine_after=3, back_off_first_s=1.0, back_off_max_s=4.0)
    booking = node.serve(node.booking("a1", (0, "3g.20gb", 4, 4)))
    node.mps.enter(7, node.word("a1").devices[0].uuid, "pod-1")
    node.take_back(booking)
    assert node.tickets.names() == ()
    tries = []
    for second in range(20):
        node.own_done.clear()
        node.tick(1.0)
        tries += [second for i in node.own_done if type(i).__name__ == "ListHolders"]
        assert not isinstance(node.word("a1"), SliceGone)
    assert tries == [0, 2, 6, 10, 14, 18]
    assert node.says("a1", SliceQuarantined).holders == ("python 7",)
    assert node.agent.snapshot().gpus[0].quarantined[0].start == 4
    assert node.agent.snapshot().slices[0].state == "quarantined"
    node.mps.leave(7)
    node.tick(4.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances() == []
    assert node.agent.snapshot().gpus[0].quarantined == ()


def test_a_whole_gpu_is_free_only_when_the_tenants_processes_are_gone(node):
    """Two tenants are never on one GPU, although nothing has to be destroyed between them."""
    booking = node.serve(node.booking("a1", (2, None, 0, 8)))
    assert node.word("a1").devices[0].uuid == node.gpus[2]
    node.mps.enter(7, node.gpus[2], "pod-1")
    node.take_back(booking)
    node.serve(node.booking("a2", (2, None, 0, 8), owner="pod-2"))
    assert not isinstance(node.word("a1"), SliceGone)
    assert "python 7" in node.says("a2", SliceFailed).message
    node.mps.leave(7)
    node.tick(1.0)
    assert isinstance(node.word("a1"), SliceGone)


def test_a_foreign_instance_is_reported_subtracted_and_never_touched(new_node):
    gpu = new_node.gpus[0]
    new_node.start()
    profile = next(p for p in new_node.backend.read_gpu(gpu).profiles if p.name == "3g.20gb")
    new_node.work()
    new_node.open()
    total = sum(new_node.agent.snapshot().gpus[0].creatable.values())
    gi_id = new_node.backend.create_gpu_instance(gpu, profile.profile_id, 4, 4)
    new_node.tick(60.0)
    shown = new_node.agent.snapshot().gpus[0]
    assert [(i.gi_id, i.allocation) for i in shown.instances] == [(gi_id, None)]
    assert (total, sum(shown.creatable.values())) == (19, 11)
    new_node.serve(new_node.booking("a1", (0, "3g.20gb", 4, 4)))
    assert isinstance(new_node.word("a1"), SliceFailed)
    new_node.live()
    assert new_node.instances() == [("3g.20gb", 4, 4)]
    assert [i.uuid for i in new_node.backend.read_gpu(gpu).instances] == [""]


def test_another_instance_under_our_id_is_left_alone(node):
    """After a reset by hand, what sits where ours was is not destroyed in its stead."""
    booking = node.serve(node.booking("a1", (0, "3g.20gb", 4, 4)))
    node.change_instance(uuid="MIG-of-another")
    node.gone(booking)
    assert node.hardware.read().gpus[0].instances[0].uuid == "MIG-of-another"


def test_what_cannot_be_made_again_is_degraded_and_tried_again(make_node):
    """A pod whose slice is lost gets the reason, and gets the slice back when that becomes possible."""
    node = make_node(remake_retry_s=5.0)
    node.serve(node.booking("a1", *TWO))
    node.hardware.reboot()
    node.fault(insufficient=2)
    node.live()
    assert isinstance(node.word("a1"), SliceDegraded)
    assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ())
    node.tick(4.0)
    assert isinstance(node.word("a1"), SliceDegraded)
    node.tick(2.0)
    node.tick(6.0)
    assert isinstance(node.word("a1"), SliceReady)


def test_a_whole_gpu_that_is_put_in_mig_mode_by_hand_is_degraded_until_it_is_out_of_it(node):
    """Its pod has no device any more, and no message would say so."""
    node.ready(node.booking("a1", (2, None, 0, 8)))
    node.change_gpu(2, mig=True)
    node.tick(30.0, times=3)
    assert "MIG is enabled" in node.says("a1", SliceDegraded).message
    assert node.tickets.names() == ()
    node.change_gpu(2, mig=False)
    node.tick(30.0, times=3)
    assert node.tickets.names() == (node.says("a1", SliceReady).ticket,)


def test_a_lost_gpu_is_unhealthy_its_slices_degraded_and_both_come_back(node):
    """A GPU that falls off the bus is seen at once, and nothing of it is given away meanwhile."""
    node.serve(node.booking("a1", *TWO))
    before = node.word("a1")
    node.fault(gpu_lost=1)
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert [gpu.healthy for gpu in node.agent.snapshot().gpus] == [True, False, True]
    assert len(node.agent.snapshot().gpus[1].instances) == 1
    node.take_back(node.booking("a1", *TWO))
    assert not isinstance(node.word("a1"), SliceGone)
    node.fault(gpu_lost=-1)
    node.tick(60.0)
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert before.devices[1].uuid
    assert (node.instances(0), node.instances(1)) == ([], [])


@pytest.mark.parametrize("damage", ["removed", "emptied", "flipped"])
@pytest.mark.parametrize("crash_at", [0, 1, 2, 3])
def test_a_lost_journal_is_rebuilt_from_devices_and_ledger(node, damage, crash_at):
    """A broken disk block takes no slice from a running pod and leaks none: also when the rebuilding is cut short."""
    booking, whole = node.booking("a1", *TWO), node.booking("a2", (2, None, 0, 8), owner="pod-2")
    node.serve(booking, whole)
    before = [node.word("a1"), node.word("a2")]
    node.spoil_journal(damage)
    node.start()
    assert node.work(own_max=0) is False
    if crash_at:
        node.work(own_max=crash_at - 1)
        node.open()
        node.work(own_max=crash_at)
        node.start()
    node.work()
    node.open()
    node.work()
    assert [node.word("a1"), node.word("a2")] == before
    assert node.tickets.names() == tuple(sorted(word.ticket for word in before))
    assert [i.allocation for gpu in node.agent.snapshot().gpus for i in gpu.instances] == ["a1", "a1"]
    node.gone(booking, whole)
    assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ())


def test_a_grant_that_failed_is_tried_again_when_it_is_ordered_again(node):
    node.fault(ci_fails=1)
    booking = node.serve(node.booking("a1", *TWO))
    assert isinstance(node.word("a1"), SliceFailed)
    node.obey(node.grant(booking, revision=2))
    assert node.says("a1", SliceReady).revision == 2


def test_a_grant_that_moves_a_slice_is_not_taken(node):
    """A place never moves under a running pod: only a Revoke destroys."""
    booking = node.serve(node.booking("a1", (0, "3g.20gb", 4, 4)))
    before = node.word("a1")
    moved = msgspec.structs.replace(booking, devices=node.booking("a1", (0, "3g.20gb", 0, 4)).devices)
    node.obey(node.grant(moved, revision=2))
    assert node.word("a1") == before
    assert node.instances() == [("3g.20gb", 4, 4)]


@pytest.mark.parametrize("shared", [False, True], ids=["slice", "home"])
@pytest.mark.parametrize("steps", range(8))
def test_a_slice_that_is_being_made_on_a_gpu_that_falls_silent_is_not_waited_for_without_a_word(node, steps, shared):
    """Its pod would wait for as long as that lasts, although there is room for it elsewhere."""
    at = (0, "3g.20gb", 4, 4)
    node.order(node.grant(node.share("a1", at) if shared else node.booking("a1", at)))
    if node.work(own_max=steps):
        return
    node.fault(gpu_lost=0)
    node.live()
    node.tick(60.0, times=10)
    assert isinstance(node.word("a1"), (SliceDegraded, SliceFailed, SliceQuarantined)), node.word("a1")
    node.fault(gpu_lost=-1)
    node.tick(60.0, times=3)
    assert isinstance(node.word("a1"), (SliceReady, SliceFailed)), node.word("a1")


@pytest.mark.parametrize("shared", [False, True], ids=["slice", "home"])
def test_a_gpu_whose_driver_does_not_come_back_from_a_call_counts_as_lost_until_it_does(node, shared):
    """Its pods would wait for ever without a reason, and more and more would be put there."""
    at = (0, "3g.20gb", 4, 4)
    node.order(node.grant(node.share("a1", at) if shared else node.booking("a1", at)))
    hanging = node.up_to(do.CreateGpuInstance)
    node.tick(5.0, times=8)
    assert not node.agent.snapshot().gpus[0].lost, "it may take its time"
    node.tick(5.0, times=8)
    assert node.agent.snapshot().gpus[0].lost
    assert "CreateGpuInstance" in node.agent.snapshot().gpus[0].health_message
    assert isinstance(node.word("a1"), SliceDegraded)
    node.ready(node.booking("a2", (1, "3g.20gb", 4, 4)))
    node.handle(node.carry_out(hanging))
    node.tick(60.0, times=3)
    assert node.agent.snapshot().gpus[0].healthy
    assert isinstance(node.word("a1"), SliceReady)


def test_a_slice_that_lived_is_degraded_and_not_failed_when_a_new_disk_cannot_have_it_at_once(new_node):
    """Its place would be revoked under its pod, for a device that refuses once."""
    booking = new_node.booking("a1", (0, "2g.10gb", 4, 2))
    new_node.put("sluice.ledger.n1_example.a1", new_node.grant(booking))
    new_node.begin()
    token, life = new_node.agent._in_flight._token, {"boot_id": new_node.backend.boot_id(), "lost": True}
    new_node.open(booking.allocation)
    record = SliceRecord(booking=booking, revision=1, phase="making", devices=(DeviceRecord(step="intended"),), **life)
    assert new_node.own(new_node.waiting) == [do.SaveJournal(token + 1, record)]
    new_node.refused.append(do.CreateGpuInstance)
    new_node.work()
    assert new_node.word("a1") == SliceDegraded(
        allocation=booking.allocation,
        request=booking.request,
        revision=1,
        shrinking=False,
        message="its devices vanished and could not be created again: Unknown: refused by the test",
    )
    assert new_node.instances() == []
    new_node.tick(60.0)
    assert isinstance(new_node.word("a1"), SliceReady)
