"""What the node agent may rely on with simulated devices or a driver's; layouts and NVML's own in files beside."""

import subprocess
import sys
import threading

import pytest
from factories.gpus.instances import instance_of
from factories.waiting import wait_until
from nvml.backends import XID

from sluice_node_agent.device.port import (
    DeviceError,
    DifferentError,
    GpuLostError,
    InsufficientResourcesError,
    InUseError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
)

POD = "6a1f0a52-8a52-4a1e-9f0c-0b9d1d6c2f11"
OTHER = "0d9c7f3e-3f6b-4a0e-8a52-5b1de0b1a9c7"
TWO = '{model="a100-40gb"}, {model="NVIDIA H100 80GB HBM3"}'
AND_WHOLE = '{model="a100-40gb"}, {model="a100-40gb", mig=false}'
WAIT_S = 60.0


@pytest.fixture
def rig(make_devices):
    """An A100-40GB in MIG mode, and one without MIG."""
    return make_devices(AND_WHOLE)


# -- making and unmaking --------------------------------------------------------------------------------------------


def test_instances_go_inside_out_and_only_when_they_are_the_ones_that_are_meant(rig):
    """Another tenant's slice would be destroyed, because it has the id that ours had."""
    (a100, _), backend = rig.uuids(), rig.backend
    gi_id, uuid = rig.make("3g.20gb", 4)
    with pytest.raises(InsufficientResourcesError):
        backend.create_compute_instance(a100, gi_id)
    with pytest.raises(InUseError):
        backend.destroy_gpu_instance(a100, gi_id, 4, 4)
    for wrong in ("MIG-00000000-0000-0000-0000-000000000000", "", a100):
        with pytest.raises(DifferentError):
            backend.destroy_compute_instance(a100, gi_id, wrong)
    assert instance_of(backend, a100, gi_id).uuid == uuid
    backend.destroy_compute_instance(a100, gi_id, uuid)
    with pytest.raises(NotFoundError):
        backend.destroy_compute_instance(a100, gi_id, uuid)
    for start, size in ((0, 4), (4, 2)):
        with pytest.raises(DifferentError):
            backend.destroy_gpu_instance(a100, gi_id, start, size)
    backend.destroy_gpu_instance(a100, gi_id, 4, 4)
    for gone in (
        lambda: backend.destroy_gpu_instance(a100, gi_id, 4, 4),
        lambda: backend.destroy_compute_instance(a100, gi_id, uuid),
        lambda: backend.create_compute_instance(a100, gi_id),
    ):
        with pytest.raises(NotFoundError):
            gone()


def test_ids_do_not_follow_placements(make_devices):
    """An agent that guesses ids would destroy the neighbour."""
    rig = make_devices('{model="a100-40gb", count=8}')
    starts = {}
    for gpu in range(8):
        for start in range(7):
            gi_id, _ = rig.make("1g.5gb", start, gpu=gpu, compute=False)
            starts.setdefault(gi_id, set()).add(start)
    assert any(len(found) > 1 for found in starts.values())


def test_what_another_hand_made_is_reported_and_is_in_the_way(rig):
    """Instances of an administrator would be built over."""
    gi_id = rig.foreign("2g.10gb", 2)
    (found,) = rig.backend.read()[0].instances
    assert (found.gi_id, found.profile, found.start, found.size) == (gi_id, "2g.10gb", 2, 2)
    assert found.uuid.startswith("MIG-")
    assert found.allocation is None
    with pytest.raises(InsufficientResourcesError):
        rig.make("1g.5gb", 3)
    rig.foreign("1g.5gb", 6, compute=False)
    assert rig.spans() == [("2g.10gb", 2, 2), ("1g.5gb", 6, 1)]


def test_what_is_at_a_place_is_found_there_by_any_maker(rig):
    """An administrator's instance, made since the last reading, would get a mark of ours and be destroyed as ours."""
    backend, (a100, whole), ids = rig.backend, rig.uuids(), rig.ids()
    made, _ = rig.make("1g.5gb", 0, compute=False)
    foreign = rig.foreign("3g.20gb", 4)
    looked = [
        backend.instance_at(gpu, ids[name], start, size)
        for gpu, name, start, size in (
            (a100, "1g.5gb", 0, 1),
            (a100, "3g.20gb", 4, 4),
            (a100, "1g.5gb", 1, 1),
            (a100, "3g.20gb", 0, 4),
            (a100, "4g.20gb", 4, 4),
            (whole, "1g.5gb", 0, 1),
        )
    ]
    assert looked == [made, foreign, None, None, None, None]
    rig.lose(0)
    with pytest.raises(GpuLostError):
        backend.instance_at(a100, ids["1g.5gb"], 0, 1)


def test_faults_of_the_driver_are_told_apart(rig):
    """What can be tried again would be given up, or the other way round."""
    backend, a100 = rig.backend, rig.uuids()[0]
    rig.fault("insufficient", 1)
    with pytest.raises(InsufficientResourcesError):
        rig.make("1g.5gb", 6)
    small = rig.ids()["1g.5gb"]
    rig.fault("no_permission", 1)
    with pytest.raises(NoPermissionError):
        backend.create_gpu_instance(a100, small, 6, 1)
    rig.fault("ci_fails", 1)
    with pytest.raises(InsufficientResourcesError):
        rig.make("1g.5gb", 6)
    (left,) = backend.read()[0].instances
    uuid = backend.create_compute_instance(a100, left.gi_id)
    rig.fault("in_use_times", 2)
    for _ in range(2):
        with pytest.raises(InUseError):
            backend.destroy_compute_instance(a100, left.gi_id, uuid)
    backend.destroy_compute_instance(a100, left.gi_id, uuid)
    backend.destroy_gpu_instance(a100, left.gi_id, 6, 1)
    assert rig.spans() == []


def test_a_gpu_without_mig_mode_makes_no_instances(rig):
    """A whole GPU that is promised to a request would be cut up."""
    whole = rig.uuids()[1]
    report = rig.backend.read_gpu(whole)
    assert not report.mig_enabled
    assert report.instances == ()
    with pytest.raises(NotSupportedError):
        rig.backend.create_gpu_instance(whole, rig.ids()["1g.5gb"], 6, 1)


# -- processes ------------------------------------------------------------------------------------------------------


def test_no_instance_is_destroyed_under_a_process(rig):
    """A tenant's job would lose its device, or the next tenant would meet it there."""
    backend, a100 = rig.backend, rig.uuids()[0]
    gi_id, uuid = rig.make("3g.20gb", 4)
    _, beside = rig.make("3g.20gb", 0)
    pid = rig.start_process(uuid, owner=POD)
    server = rig.start_process(uuid, kind="mps")
    other = rig.start_process(beside, owner=OTHER)
    found = {holder.pid: (holder.owner, holder.kind) for holder in backend.processes(a100, uuid)}
    assert found == {pid: (POD, "compute"), server: ("", "mps")}
    assert {holder.pid for holder in backend.processes(a100, beside)} == {other}
    assert {holder.pid for holder in backend.processes(a100, a100)} == {pid, server, other}
    for ended in (pid, server):
        with pytest.raises(InUseError):
            backend.destroy_compute_instance(a100, gi_id, uuid)
        rig.stop_process(ended)
    backend.destroy_compute_instance(a100, gi_id, uuid)
    backend.destroy_gpu_instance(a100, gi_id, 4, 4)
    assert backend.processes(a100, uuid) == ()
    assert {holder.pid for holder in backend.processes(a100, a100)} == {other}


def test_a_real_process_holds_a_device_only_while_it_lives(rig):
    """A device would be held for ever by a process that was killed."""
    backend, a100 = rig.backend, rig.uuids()[0]
    gi_id, uuid = rig.make("1g.5gb", 6)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        rig.start_process(uuid, owner=POD, pid=child.pid)
        assert [(holder.pid, holder.owner) for holder in backend.processes(a100, uuid)] == [(child.pid, POD)]
        with pytest.raises(InUseError):
            backend.destroy_compute_instance(a100, gi_id, uuid)
        child.kill()  # not waited for yet: a zombie holds nothing
        wait_until(lambda: backend.processes(a100, uuid) == ())
        backend.destroy_compute_instance(a100, gi_id, uuid)
    finally:
        child.kill()
        child.communicate()


def test_the_first_instance_needs_a_gpu_that_no_process_holds(rig):
    """A GPU would be cut up under a process that has all of it."""
    pid = rig.start_process(rig.uuids()[0], owner=POD)
    with pytest.raises(InUseError):
        rig.make("1g.5gb", 6)
    rig.stop_process(pid)
    rig.make("1g.5gb", 6)
    assert rig.spans() == [("1g.5gb", 6, 1)]


def test_a_process_that_only_has_files_open_is_shown_and_keeps_no_tenant_away(rig):
    """Monitoring would block every slice, or hold a whole GPU without being seen."""
    a100, whole = rig.uuids()
    for device in (a100, whole):
        pid = rig.start_process(device, kind="file")
        assert [(holder.pid, holder.kind) for holder in rig.backend.processes(device, device)] == [(pid, "file")]
    rig.make("1g.5gb", 6)


def test_a_whole_gpu_can_be_kept_for_one_process_until_it_is_given_back(rig):
    """A tenant whose MPS daemon is not found would run beside it, without any limit."""
    a100, whole = rig.uuids()
    rig.backend.set_exclusive_process(whole, exclusive=True)
    rig.backend.set_exclusive_process(whole, exclusive=True)
    rig.backend.set_exclusive_process(whole, exclusive=False)
    for exclusive in (True, False):
        with pytest.raises(NotSupportedError):
            rig.backend.set_exclusive_process(a100, exclusive=exclusive)
    with pytest.raises(GpuLostError):
        rig.backend.set_exclusive_process("GPU-none", exclusive=True)


# -- trouble --------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_answers_nothing_and_the_others_go_on(make_devices):
    """One broken GPU would take its node's other tenants with it, or lose its own for good."""
    rig = make_devices(TWO)
    backend, (a100, h100) = rig.backend, rig.uuids()
    gi_id, uuid = rig.make("3g.20gb", 4)
    rig.lose(0)
    for ask in (
        lambda: backend.create_compute_instance(a100, gi_id),
        lambda: backend.create_gpu_instance(a100, 9, 0, 4),
        lambda: backend.destroy_compute_instance(a100, gi_id, uuid),
        lambda: backend.destroy_gpu_instance(a100, gi_id, 4, 4),
        lambda: backend.processes(a100, a100),
    ):
        with pytest.raises(GpuLostError):
            ask()
    lost, well = backend.read()
    assert (lost.uuid, lost.index, lost.lost, lost.healthy, lost.instances) == (a100, 0, True, False, ())
    assert lost.health_message
    assert (lost.model, lost.profiles) == (backend.read_gpu(a100).model, backend.read_gpu(a100).profiles)
    assert (well.uuid, well.lost, well.healthy) == (h100, False, True)
    assert rig.make("3g.40gb", 4, gpu=1)
    rig.find(0)
    (found,) = backend.read_gpu(a100).instances
    assert (found.gi_id, found.uuid) == (gi_id, uuid)
    assert not backend.read_gpu(a100).lost
    backend.destroy_compute_instance(a100, gi_id, uuid)
    backend.destroy_gpu_instance(a100, gi_id, 4, 4)


def test_a_gpu_of_another_node_is_said_to_be_lost(rig):
    """An order that came to the wrong node would end the agent."""
    for ask in (
        lambda: rig.backend.read_gpu("GPU-none"),
        lambda: rig.backend.create_gpu_instance("GPU-none", 9, 0, 4),
        lambda: rig.backend.processes("GPU-none", "GPU-none"),
    ):
        with pytest.raises(GpuLostError):
            ask()


def test_the_driver_tells_of_a_critical_error_and_the_gpu_gets_no_new_slices(make_devices):
    """New tenants would be put on a GPU whose memory is broken, and those on it would not learn of it."""
    rig = make_devices(TWO)
    backend, (a100, h100) = rig.backend, rig.uuids()
    _, uuid = rig.make("3g.40gb", 4, gpu=1)
    _drain(backend)
    told: list[tuple[str, ...]] = []
    waiting = threading.Thread(target=lambda: told.append(backend.troubled(WAIT_S)))
    waiting.start()
    try:
        rig.xid(1)
    finally:
        waiting.join(2 * WAIT_S)
    assert told == [(h100,)]
    well, broken = backend.read()
    assert (well.uuid, well.healthy) == (a100, True)
    assert (broken.healthy, broken.lost) == (False, False)
    assert str(XID) in broken.health_message
    assert [each.uuid for each in broken.instances] == [uuid]
    assert backend.troubled(0.01) == ()


def test_an_applications_own_error_takes_no_gpu_out_of_service(make_devices):
    """One faulty job would walk through the fleet and take out one GPU after the other."""
    rig = make_devices('{model="a100-40gb"}')
    _drain(rig.backend)
    for number in (13, 31, 43, 45, 94):
        rig.xid(0, number)
        assert rig.backend.troubled(0.05) == ()
        (report,) = rig.backend.read()
        assert (report.healthy, report.health_message) == (True, "")


def test_a_gpu_that_falls_off_the_bus_is_told_of(make_devices):
    """A lost GPU would be noticed only when the next slice fails on it."""
    rig = make_devices(TWO)
    _drain(rig.backend)
    rig.lose(0)
    told: set[str] = set()
    wait_until(lambda: rig.uuids()[0] in told or told.update(rig.backend.troubled(0.1)))
    assert rig.backend.read()[0].lost


def test_waiting_for_trouble_ends_in_time_and_with_the_backend(rig):
    """An agent could not be stopped."""
    _drain(rig.backend)
    assert rig.backend.troubled(0) == ()
    waiting = threading.Thread(target=lambda: rig.backend.troubled(600))
    waiting.start()
    rig.reopen()  # closes the one that is waited on
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_a_mig_mode_that_waits_for_a_reset_keeps_new_slices_away(rig):
    """Slices would be made on a GPU that is about to lose all of them."""
    backend, (a100, whole) = rig.backend, rig.uuids()
    gi_id, uuid = rig.make("3g.20gb", 4)
    rig.pend_mig(0)
    report = backend.read_gpu(a100)
    assert (report.healthy, report.lost, report.mig_enabled) == (False, False, True)
    assert "MIG" in report.health_message
    assert [(each.gi_id, each.uuid) for each in report.instances] == [(gi_id, uuid)]
    assert backend.read_gpu(whole).healthy
    backend.destroy_compute_instance(a100, gi_id, uuid)
    backend.destroy_gpu_instance(a100, gi_id, 4, 4)
    rig.reboot()
    report = rig.backend.read_gpu(a100)
    assert (report.healthy, report.mig_enabled, report.uuid) == (True, False, a100)


def test_instances_outlive_the_agent_and_not_the_boot(rig):
    """A restart of the agent would disturb tenants, or a reboot leave slices in the books that are gone."""
    a100, whole = rig.uuids()
    gi_id, uuid = rig.make("3g.20gb", 4)
    boot_id = rig.backend.boot_id()
    assert boot_id
    rig.reopen()
    assert rig.backend.boot_id() == boot_id
    assert instance_of(rig.backend, a100, gi_id).uuid == uuid
    rig.start_process(uuid, owner=POD)
    rig.start_process(whole, owner=POD)
    rig.backend.set_exclusive_process(whole, exclusive=True)
    rig.lose(1)
    rig.reboot()
    assert rig.uuids() == [a100, whole]
    assert [(report.instances, report.lost, report.healthy) for report in rig.backend.read()] == 2 * [((), False, True)]
    assert [rig.backend.processes(gpu, gpu) for gpu in (a100, whole)] == [(), ()]


# -- many at once ---------------------------------------------------------------------------------------------------


def test_gpus_are_worked_on_at_once(make_devices):
    """A node with eight GPUs would take eight times as long, or mix them up."""
    rig = make_devices('{model="a100-40gb", count=4}')
    rig.slow()
    failed: list[BaseException] = []
    backend, uuids, under_way, most = rig.backend, rig.uuids(), set(), []

    def work(gpu):
        try:
            for start in (0, 4):
                under_way.add(gpu)
                most.append(len(under_way))
                gi_id = backend.create_gpu_instance(uuids[gpu], 9, start, 4)
                uuid = backend.create_compute_instance(uuids[gpu], gi_id)
                under_way.discard(gpu)
                assert instance_of(backend, uuids[gpu], gi_id).uuid == uuid
                if start == 0:
                    backend.destroy_compute_instance(uuids[gpu], gi_id, uuid)
                    backend.destroy_gpu_instance(uuids[gpu], gi_id, 0, 4)
        except (DeviceError, AssertionError) as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failed == []
    assert [rig.spans(gpu) for gpu in range(4)] == 4 * [[("3g.20gb", 4, 4)]]
    assert max(most) > 1


def test_where_a_gpu_sits_is_reported(make_devices):
    """Jobs on several GPUs would be spread over the slow paths of a machine."""
    rig = make_devices('{model="a100-40gb", mig=false, count=4, numa=[0, 0, 1, 1], nvlink=[[0, 1], [2, 3]]}')
    reports, uuids = rig.backend.read(), rig.uuids()
    assert [report.index for report in reports] == [0, 1, 2, 3]
    assert [report.numa_node for report in reports] == [0, 0, 1, 1]
    peers = [uuids[1], uuids[0], uuids[3], uuids[2]]
    assert [report.links for report in reports] == [{peer: 100} for peer in peers]
    assert rig.backend.read_gpu(uuids[2]).links == {uuids[3]: 100}
    assert rig.backend.read_gpu(uuids[2]).numa_node == 1


def _drain(backend):
    while backend.troubled(0):
        pass
