"""Simulated GPUs refuse what real ones refuse."""

import threading
import time

import pytest

from sluice.contracts.fleet import parse_fleet
from sluice_node_agent.core.events import Holder
from sluice_node_agent.device.hardware_file import HardwareFile, HardwareFileError, Process
from sluice_node_agent.device.port import (
    DifferentError,
    GpuLostError,
    InsufficientResourcesError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    NotSupportedError,
    RebootedError,
)
from sluice_node_agent.device.simulated import SimulatedGpus


def _fleet(gpus, extra=""):
    return parse_fleet(f'[[node]]\nname = "n1"\ngpus = [{gpus}]\n{extra}', origin="test").nodes[0]


@pytest.fixture
def file(tmp_path):
    """One A100-40GB and one H100-80GB in MIG mode, one A100 without."""
    made = HardwareFile(tmp_path / "n1.json")
    gpus = '{model="a100-40gb"}, {model="NVIDIA H100 80GB HBM3"}, {model="a100-40gb", mig=false}'
    made.make(_fleet(gpus))
    return made


@pytest.fixture
def gpus(file):
    """The devices without delay."""
    return SimulatedGpus(file)


@pytest.fixture
def a100(gpus):
    """The UUID of the A100 in MIG mode."""
    return gpus.read()[0].uuid


@pytest.fixture
def ids(gpus):
    """Profile ids by name, as the A100 reports them."""
    return {profile.name: profile.profile_id for profile in gpus.read()[0].profiles}


def _spans(gpus, number=0):
    return [(i.profile, i.start, i.size) for i in gpus.read()[number].instances]


def test_only_listed_placements_are_created(gpus, a100, ids):
    """A decision that is wrong on hardware is wrong in tests."""
    for name, start, size in (("3g.20gb", 2, 4), ("1g.5gb", 7, 1), ("2g.10gb", 5, 2), ("1g.5gb", 0, 2)):
        with pytest.raises(InvalidArgumentError):
            gpus.create_gpu_instance(a100, ids[name], start, size)
    with pytest.raises(InvalidArgumentError):
        gpus.create_gpu_instance(a100, 4711, 0, 1)
    assert _spans(gpus) == []


def test_overlap_and_used_up_engines_are_insufficient_resources(gpus, a100, ids):
    """Two instances never share memory slices or an engine."""
    gpus.create_gpu_instance(a100, ids["3g.20gb"], 4, 4)
    with pytest.raises(InsufficientResourcesError):
        gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)
    gpus.create_gpu_instance(a100, ids["1g.5gb+me"], 0, 1)
    with pytest.raises(InsufficientResourcesError):
        gpus.create_gpu_instance(a100, ids["1g.5gb+me"], 1, 1)
    gpus.create_gpu_instance(a100, ids["1g.5gb"], 1, 1)
    assert _spans(gpus) == [("1g.5gb+me", 0, 1), ("1g.5gb", 1, 1), ("3g.20gb", 4, 4)]


def test_instances_go_inside_out(gpus, a100, ids):
    """What has a compute instance or a process is not destroyed."""
    gi_id = gpus.create_gpu_instance(a100, ids["3g.20gb"], 4, 4)
    with pytest.raises(NotFoundError):
        gpus.destroy_compute_instance(a100, gi_id, "MIG-x")
    uuid = gpus.create_compute_instance(a100, gi_id)
    with pytest.raises(InsufficientResourcesError):
        gpus.create_compute_instance(a100, gi_id)
    with pytest.raises(InUseError):
        gpus.destroy_gpu_instance(a100, gi_id, 4, 4)
    with pytest.raises(DifferentError):
        gpus.destroy_compute_instance(a100, gi_id, "MIG-x")
    gpus.destroy_compute_instance(a100, gi_id, uuid)
    with pytest.raises(DifferentError):
        gpus.destroy_gpu_instance(a100, gi_id, 0, 4)
    gpus.destroy_gpu_instance(a100, gi_id, 4, 4)
    with pytest.raises(NotFoundError):
        gpus.destroy_gpu_instance(a100, gi_id, 4, 4)
    with pytest.raises(NotFoundError):
        gpus.create_compute_instance(a100, gi_id)


def test_ids_follow_nothing_and_uuids_are_always_new(gpus, a100, ids):
    """Nobody can guess an instance from its place."""
    seen, uuids = set(), set()
    for _ in range(40):
        gi_id = gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)
        uuid = gpus.create_compute_instance(a100, gi_id)
        assert gpus.instance(a100, gi_id).uuid == uuid
        seen.add(gi_id)
        uuids.add(uuid)
        gpus.destroy_compute_instance(a100, gi_id, uuid)
        gpus.destroy_gpu_instance(a100, gi_id, 6, 1)
    assert len(seen) > 5
    assert len(uuids) == 40


def test_processes_hold_devices(file, gpus, a100, ids):
    """A tenant that still runs is seen, and its device is not taken away."""
    gi_id = gpus.create_gpu_instance(a100, ids["3g.20gb"], 4, 4)
    uuid = gpus.create_compute_instance(a100, gi_id)
    whole = gpus.read()[2].uuid
    with file.changing() as hardware:
        hardware.gpus[0].processes.append(Process(pid=5, owner="pod-1", device=uuid))
        hardware.gpus[2].processes.append(Process(pid=6, owner="pod-2", device=whole))
    assert gpus.processes(a100, uuid) == (Holder(5, "pod-1", "python"),)
    assert gpus.processes(a100, a100) == (Holder(5, "pod-1", "python"),)
    assert gpus.processes(a100, "MIG-gone") == ()
    assert gpus.processes(whole, whole) == (Holder(6, "pod-2", "python"),)
    with pytest.raises(InUseError):
        gpus.destroy_compute_instance(a100, gi_id, uuid)


def test_the_first_instance_needs_an_idle_gpu(file, gpus, a100, ids):
    """A GPU that a process holds as a whole cannot be cut under it."""
    with file.changing() as hardware:
        hardware.gpus[0].processes.append(Process(pid=5, owner="", device=a100))
    with pytest.raises(InUseError):
        gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)


def test_mig_off_and_unknown_gpus_are_refused(gpus, ids):
    """What cannot be done is said in the right word."""
    with pytest.raises(NotSupportedError):
        gpus.create_gpu_instance(gpus.read()[2].uuid, ids["1g.5gb"], 6, 1)
    with pytest.raises(GpuLostError):
        gpus.create_gpu_instance("GPU-none", ids["1g.5gb"], 6, 1)
    with pytest.raises(GpuLostError):
        gpus.read_gpu("GPU-none")


def test_instances_outlive_the_process_and_not_a_reboot(file, gpus, a100, ids):
    """Restarting an agent disturbs nobody; a reboot takes every instance."""
    gi_id = gpus.create_gpu_instance(a100, ids["3g.20gb"], 4, 4)
    again = SimulatedGpus(HardwareFile(file._path))
    assert again.boot_id() == gpus.boot_id()
    assert again.instance(a100, gi_id).profile == "3g.20gb"
    file.reboot()
    with pytest.raises(RebootedError):
        gpus.read()
    later = SimulatedGpus(file)
    assert later.boot_id() != gpus.boot_id()
    assert [report.instances for report in later.read()] == [(), (), ()]
    assert later.read()[0].uuid == a100


def test_faults_strike_as_often_as_asked(file, gpus, a100, ids):
    """Failures can be rehearsed."""
    with file.changing() as hardware:
        hardware.faults.insufficient = 1
        hardware.faults.ci_fails = 1
        hardware.faults.in_use_times = 1
    with pytest.raises(InsufficientResourcesError):
        gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)
    gi_id = gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)
    with pytest.raises(InsufficientResourcesError):
        gpus.create_compute_instance(a100, gi_id)
    uuid = gpus.create_compute_instance(a100, gi_id)
    with pytest.raises(InUseError):
        gpus.destroy_compute_instance(a100, gi_id, uuid)
    gpus.destroy_compute_instance(a100, gi_id, uuid)


def test_a_lost_gpu_answers_nothing_and_the_others_go_on(file, gpus, a100):
    """One broken GPU does not take the node with it."""
    with file.changing() as hardware:
        hardware.faults.gpu_lost = 0
    with pytest.raises(GpuLostError):
        gpus.create_compute_instance(a100, 3)
    with pytest.raises(GpuLostError):
        gpus.processes(a100, a100)
    assert [report.healthy for report in gpus.read()] == [False, True, True]


def test_gpus_work_in_parallel_and_take_their_time(file, ids):
    """Two GPUs make two slices in the time of one."""
    slow = SimulatedGpus(file, create_ms=200)
    reports = slow.read()
    h100 = {profile.name: profile.profile_id for profile in reports[1].profiles}
    began = time.monotonic()
    jobs = [
        threading.Thread(target=slow.create_gpu_instance, args=(reports[0].uuid, ids["1g.5gb"], 6, 1)),
        threading.Thread(target=slow.create_gpu_instance, args=(reports[1].uuid, h100["1g.10gb"], 6, 1)),
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    took_s = time.monotonic() - began
    assert _spans(slow, 0) == [("1g.5gb", 6, 1)]
    assert _spans(slow, 1) == [("1g.10gb", 6, 1)]
    assert took_s >= 0.1


def test_another_fleet_on_the_same_file_is_refused(file):
    """Nobody's instances vanish because a fleet file was edited."""
    with pytest.raises(HardwareFileError, match="holds other GPUs"):
        file.make(_fleet('{model="a100-40gb"}'))


def test_unknown_or_wrong_fault_switches_are_refused_by_name(tmp_path):
    """A misspelled fault does not silently never strike."""
    for wrong in ("insuficient = 1", 'slow = "very"'):
        fleet = _fleet('{model="a100-40gb"}', f"[node.faults]\n{wrong}\n")
        with pytest.raises(HardwareFileError, match="known: in_use_times"):
            HardwareFile(tmp_path / "x.json").make(fleet)


def test_a_damaged_hardware_file_is_said_to_be_one(file):
    """A person is told which file, not shown a traceback."""
    file._path.write_text("{")
    with pytest.raises(HardwareFileError, match="no simulated hardware"):
        SimulatedGpus(file)
