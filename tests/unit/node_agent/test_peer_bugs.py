"""Known faults of other systems on a node: one test each that shows they are not ours (docs/peer-bugs.md)."""

import pytest
from factories.crashes import deaths
from factories.gpus.admin_layouts import admin_makes

from sluice.contracts.messages import SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyComputeInstance, DestroyGpuInstance


def destroyed(node):
    """What was destroyed on devices, in order."""
    return [each for each in node.own_done if isinstance(each, (DestroyComputeInstance, DestroyGpuInstance))]


HALF = (0, "3g.20gb", 4, 4)
OTHER_HALF = (0, "3g.20gb", 0, 4)


def ready(node, allocation="a1", device=HALF):
    return node.ready(node.booking(allocation, device, owner=f"pod-{allocation}"))


def test_all_slices_of_a_rebooted_node_are_made_again_whatever_one_of_them_does(node):
    """InstaSlice #663: one node whose boot id differed stopped all of them; HAMi 2.4: one that fails ends all."""
    ready(node)
    ready(node, "a2", OTHER_HALF)
    node.hardware.reboot()
    node.fault(ci_fails=1)
    node.live()
    node.tick(2.0, times=60)
    assert [type(node.word(each)) for each in ("a1", "a2")] == [SliceReady, SliceReady]
    assert node.instances() == [("3g.20gb", 0, 4), ("3g.20gb", 4, 4)]


def test_a_slice_is_ready_only_when_its_instance_reads_back(node, monkeypatch):
    """HAMi #2131: a tool did nothing, ended with status 0, and a pod was given the UUID of what was never made."""
    made = node.backend.create_compute_instance

    def vanishes(gpu, gi_id):
        uuid = made(gpu, gi_id)
        node.lose_instances()
        return uuid

    monkeypatch.setattr(node.backend, "create_compute_instance", vanishes)
    node.serve(node.booking("a1", HALF))
    assert isinstance(node.word("a1"), SliceFailed)
    assert node.tickets.names() == ()


def test_a_slice_in_use_keeps_no_other_waiting(node):
    """HAMi 2.4: the loop that frees slices ended at the first that is in use, and delayed all others of the node."""
    stuck, free = ready(node), ready(node, "a2", OTHER_HALF)
    node.mps.enter(7, node.word("a1").devices[0].uuid, "pod-a1")
    node.take_back(stuck, free)
    assert isinstance(node.word("a2"), SliceGone)
    assert not isinstance(node.word("a1"), SliceGone)


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_what_was_begun_and_never_finished_is_given_back_when_its_pod_is_gone(make_node, executed):
    """DRA driver #840, #1278: claims that were being prepared when their pod went kept their device for ever."""
    for death in deaths(executed=executed, least=12):
        node = make_node()
        booking = node.booking("a1", HALF, (1, "1g.5gb", 6, 1))
        node.order(node.grant(booking))
        death.strikes(node)
        node.stop()
        node.put("sluice.ledger.n1_example.a1", node.revoke(booking))
        node.live()
        assert isinstance(node.word("a1"), SliceGone), death.steps
        assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ()), death.steps


@pytest.mark.parametrize("damage", ["flipped", "torn", "emptied", "removed"])
def test_a_damaged_journal_is_told_of_and_ends_no_agent(node, damage):
    """DRA driver #1100: a corrupt checkpoint ended every start, and no event said why."""
    ready(node)
    node.spoil_journal(damage)
    node.begin()
    assert node.agent.snapshot().warnings, "no warning"
    node.open()
    node.work()
    assert node.instances() == [("3g.20gb", 4, 4)]
    assert destroyed(node) == []
    node.live()
    assert isinstance(node.word("a1"), SliceReady)


def test_a_device_that_vanished_with_nobody_watching_is_made_again_before_anybody_starts_on_it(node):
    """Of kubelet #102880: a checkpoint was not restored, silently, and pods were admitted without devices."""
    ready(node)
    before = node.word("a1")
    node.stop()
    node.lose_instances()
    node.live()
    node.tick(2.0, times=30)
    after = node.says("a1", SliceReady)
    assert node.tickets.names() == (after.ticket,)
    assert after.ticket != before.ticket
    assert after.devices[0].uuid == node.hardware.read().gpus[0].instances[0].uuid


def test_after_a_reboot_a_slice_waits_for_its_gpu_to_be_well(node):
    """Of kubelet #109595: after a reboot pods were recovered before their devices were well, and failed for good."""
    ready(node)
    node.hardware.reboot()
    node.fault(gpu_lost=0)
    node.live()
    assert not isinstance(node.word("a1"), SliceGone)
    assert node.tickets.names() == ()
    node.fault(gpu_lost=-1)
    node.tick(2.0, times=60)
    assert isinstance(node.word("a1"), SliceReady)
    assert node.instances() == [("3g.20gb", 4, 4)]


def test_an_update_of_the_agent_destroys_nothing(node):
    """FaST-GShare 3.5: on SIGTERM the daemon stopped every MPS server and destroyed every instance; HAMi #727."""
    ready(node)
    node.serve(node.share("a2", (1, "3g.20gb", 4, 4)))
    before = (node.instances(0), node.instances(1), node.mps.started, node.tickets.names())
    node.own_done.clear()
    for _ in range(3):
        node.live()
    assert (node.instances(0), node.instances(1), node.mps.started, node.tickets.names()) == before
    assert destroyed(node) == []


def test_a_reading_forgets_no_daemon_and_starts_none_twice(node):
    """FaST-GShare 3.6.3: each reading of the GPUs forgot that MPS was on, so the daemon was never ended."""
    booking = node.serve(node.share("a1", (2, None, 0, 8)))
    node.tick(5.0, times=30)
    node.live()
    assert (len(node.mps.living()), node.mps.started) == (1, 1)
    node.gone(booking)
    assert node.mps.living() == []


def test_a_gpu_instance_without_its_compute_instance_is_found_and_undone(node):
    """DRA driver #1452, FaST-GShare 3.6.12, InstaSlice: the rollback did not find it, or the error was lost."""
    node.fault(ci_fails=1)
    node.serve(node.booking("a1", HALF))
    assert node.says("a1", SliceFailed).message
    assert (node.instances(), node.tickets.names()) == ([], ())


def test_an_instance_is_unmade_inside_out(node):
    """FaST-GShare 3.6.7, 3.6.11: the GPU instance went before its compute instance, which fails; or neither did."""
    booking = ready(node)
    node.own_done.clear()
    node.take_back(booking)
    assert [type(each) for each in destroyed(node)] == [DestroyComputeInstance, DestroyGpuInstance]
    assert isinstance(node.word("a1"), SliceGone)


def test_two_orders_of_one_profile_get_two_instances(node):
    """FaST-GShare 3.6.1: the second of two concurrent requests was answered with the instance of the first."""
    for allocation, at in (("a1", HALF), ("a2", OTHER_HALF)):
        node.order(node.grant(node.booking(allocation, at, owner=f"pod-{allocation}")))
    node.work()
    assert len({node.word(each).devices[0].uuid for each in ("a1", "a2")}) == 2
    assert node.instances() == [("3g.20gb", 0, 4), ("3g.20gb", 4, 4)]


def test_a_new_slice_waits_for_the_end_of_the_one_before_it(node):
    """InstaSlice #409: a slice was created where the previous one was still being deleted."""
    first = ready(node)
    node.fault(in_use_times=2)
    node.order(node.revoke(first))
    node.obey(node.grant(node.booking("a2", HALF, owner="pod-2"), after=("a1",)))
    assert not isinstance(node.word("a2"), SliceReady)
    node.tick(2.0, times=40)
    assert [type(node.word(each)) for each in ("a1", "a2")] == [SliceGone, SliceReady]


def test_an_agent_that_could_not_begin_a_slice_is_ready_for_the_next(node):
    """InstaSlice #211, HAMi #1422: one error at the set-up was never tried again, or restarted the plugin for ever."""
    node.refused.append(CreateGpuInstance)
    node.serve(node.booking("a1", HALF))
    assert isinstance(node.word("a1"), SliceFailed)
    node.take_back(node.booking("a1", HALF))
    ready(node, "a2")


def test_instances_that_somebody_made_by_hand_end_no_agent_and_stay(new_node):
    """DRA driver #149, #473: MIG devices made out of band ended the plugin, at its start or while it ran."""
    admin_makes(new_node, "1g.5gb", 6, 1)
    new_node.live()
    admin_makes(new_node, "1g.5gb", 5, 1, uuid="")  # half made: without a compute instance
    new_node.tick(5.0, times=30)
    (gpu, *_) = new_node.agent.snapshot().gpus
    assert [(each.start, each.allocation) for each in gpu.instances] == [(5, None), (6, None)]
    ready(new_node, device=OTHER_HALF)
    assert new_node.instances() == [("1g.5gb", 5, 1), ("1g.5gb", 6, 1), ("3g.20gb", 0, 4)]
    assert destroyed(new_node) == []


def test_a_device_that_a_monitor_holds_is_tried_again_and_given_up_by_nobody(node):
    """HAMi #1088, DCGM #276, gpu-operator #2833: one client that stays had the system stuck, or its slice forgotten."""
    booking = ready(node)
    node.fault(in_use_times=5)
    node.order(node.revoke(booking))
    node.tick(5.0, times=200)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances() == []


def test_no_form_of_a_uuid_is_needed(new_node):
    """HAMi #1950: the MIG UUID of a newer driver could not be parsed, and all of a node's devices became unhealthy."""
    admin_makes(new_node, "1g.5gb", 6, 1, uuid="MIG-GPU-5fd4f/7/0 of the next driver")
    new_node.live()
    ready(new_node, device=OTHER_HALF)
    report = new_node.agent.snapshot().gpus[0]
    assert report.healthy
    assert len(report.instances) == 2
