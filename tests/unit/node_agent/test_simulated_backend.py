"""What only simulated GPUs do: hardware in a file, faults, a command; the rest: tests/conformance/test_devices*.py."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_node_agent.device.port import RebootedError
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.shell.commands.hardware_command import change_hardware
from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import Hardware, HardwareFile, HardwareFileError, Process


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
    return SimulatedBackend(file)


@pytest.fixture
def a100(gpus):
    return gpus.read()[0].uuid


@pytest.fixture
def ids(gpus):
    return {profile.name: profile.profile_id for profile in gpus.read()[0].profiles}


def _spans(gpus, number=0):
    return [(i.profile, i.start, i.size) for i in gpus.read()[number].instances]


def test_gpus_work_in_parallel_and_take_their_time(file, ids):
    """A rehearsal would show a node that is faster, or slower, than a real one."""
    slow = SimulatedBackend(file, create_ms=200)
    a100, h100, _ = slow.read()
    of_h100 = {profile.name: profile.profile_id for profile in h100.profiles}
    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        threads.submit(slow.create_gpu_instance, a100.uuid, ids["1g.5gb"], 6, 1)
        threads.submit(slow.create_gpu_instance, h100.uuid, of_h100["1g.10gb"], 6, 1)
    took_s = time.monotonic() - began
    assert _spans(slow, 0) == [("1g.5gb", 6, 1)]
    assert _spans(slow, 1) == [("1g.10gb", 6, 1)]
    assert took_s >= 0.1


def test_a_file_that_holds_other_gpus_or_none_is_refused(file):
    """An agent would serve GPUs that its fleet file does not name, or end with a traceback."""
    with pytest.raises(HardwareFileError, match="holds other GPUs"):
        file.make(_fleet('{model="a100-40gb"}'))
    file._path.write_text("{")
    with pytest.raises(HardwareFileError, match="no simulated hardware"):
        SimulatedBackend(file)


def test_unknown_or_wrong_fault_switches_are_refused_by_name(tmp_path):
    for wrong in ("insuficient = 1", 'slow = "very"'):
        fleet = _fleet('{model="a100-40gb"}', f"[node.faults]\n{wrong}\n")
        with pytest.raises(HardwareFileError, match="known: in_use_times"):
            HardwareFile(tmp_path / "x.json").make(fleet)


def test_a_mig_mode_that_was_changed_is_not_another_fleet(tmp_path):
    """An agent would not start any more after MIG was switched by hand and the node rebooted."""
    fleet = _fleet('{model="a100-40gb", count=2}')
    file = HardwareFile(tmp_path / "n1.json")
    file.make(fleet)
    with file.changing() as hardware:
        hardware.faults.mig_pending = 1
    file.reboot()
    file.make(fleet)
    assert [report.mig_enabled for report in SimulatedBackend(file).read()] == [True, False]
    with pytest.raises(HardwareFileError, match="holds other GPUs"):
        file.make(_fleet('{model="a100-40gb"}, {model="a100-40gb", mig=false}'))
    with file.changing() as hardware:
        hardware.faults.mig_pending = 1
    file.reboot()
    assert [report.mig_enabled for report in SimulatedBackend(file).read()] == [True, True]


def test_where_gpus_sit_may_be_published_again(tmp_path):
    """Adding NUMA nodes or links to a fleet file would need a new node."""
    file = HardwareFile(tmp_path / "n1.json")
    file.make(_fleet('{model="a100-40gb", count=2}'))
    gpus = SimulatedBackend(file)
    assert [(report.numa_node, report.links) for report in gpus.read()] == [(None, {}), (None, {})]
    file.make(_fleet('{model="a100-40gb", count=2, numa=[0, 1], nvlink=[[0, 1]]}'))
    one, other = gpus.read()
    assert (one.numa_node, other.numa_node) == (0, 1)
    assert (one.links, other.links) == ({other.uuid: 100}, {one.uuid: 100})


def test_what_changes_nothing_writes_nothing(file, gpus, a100, ids):
    gpus.create_gpu_instance(a100, ids["3g.20gb"], 4, 4)
    before = file._path.stat().st_mtime_ns, file._path.stat().st_ino
    with pytest.raises(Exception, match="in the way"):
        gpus.create_gpu_instance(a100, ids["1g.5gb"], 6, 1)
    gpus.read()
    assert (file._path.stat().st_mtime_ns, file._path.stat().st_ino) == before


def test_a_later_process_with_the_same_pid_is_another_one(file, gpus, a100):
    """A device would be held by an unrelated process that gets the pid of one that ended."""
    mine = Processes().started_at(os.getpid())
    with file.changing() as hardware:
        hardware.gpus[0].processes = [
            Process(pid=os.getpid(), owner="now", device=a100, real=True, started_at=mine),
            Process(pid=os.getpid(), owner="earlier", device=a100, real=True, started_at=mine - 1),
        ]
    assert [holder.owner for holder in gpus.processes(a100, a100)] == ["now"]


def test_an_error_is_told_once_and_ends_with_the_boot(file, gpus, a100):
    """An agent would read a broken GPU for ever, or never give it out again."""
    assert gpus.troubled(0) == ()
    with file.changing() as hardware:
        hardware.faults.xid = 48
    assert gpus.troubled(5) == (a100,)
    assert gpus.troubled(0) == ()
    assert SimulatedBackend(file).troubled(0) == ()
    with file.changing() as hardware:
        hardware.faults.xid = 95
    assert gpus.troubled(5) == (a100,)
    file.reboot()
    assert [report.healthy for report in SimulatedBackend(file).read()] == [True, True, True]
    with pytest.raises(RebootedError):
        gpus.troubled(5)


@pytest.fixture
def command(tmp_path, capsys):
    """Runs `sluice-node-agent hardware` on a node n1 with an A100 in MIG mode and one without."""
    HardwareFile(hardware_path(tmp_path, "n1")).make(_fleet('{model="a100-40gb"}, {model="a100-40gb", mig=false}'))

    def run(*arguments):
        code = change_hardware(["hardware", "--data", str(tmp_path), "n1", *arguments])
        said = capsys.readouterr()
        return code, said.out.strip() or said.err.strip()

    run.file = HardwareFile(hardware_path(tmp_path, "n1"))
    return run


def test_a_person_can_rehearse_a_broken_gpu(command):
    """The row of the runbook about Xid errors could not be tried."""
    code, said = command("fault", "xid=48", "xid_gpu=1")
    assert code == 0
    assert "xid=48" in said
    assert [report.healthy for report in SimulatedBackend(command.file).read()] == [True, False]
    code, said = command("fault", "xidd=48")
    assert (code, "xidd" in said, "xid_gpu" in said) == (1, True, True)


@pytest.mark.parametrize("switch", ["slow=nan", "slow=inf", "slow=1e999"])
def test_a_fault_that_no_file_can_hold_is_refused_and_the_node_lives_on(command, switch):
    """The command reports success, and the node's hardware can never be read again."""
    code, said = command("fault", switch)
    assert (code, "known: in_use_times" in said) == (1, True)
    assert len(SimulatedBackend(command.file).read()) == 2


def test_a_person_can_put_processes_of_each_kind_on_a_device(command):
    """Holders of a device could not be shown without an MPS server or a monitor."""
    whole = command.file.read().gpus[1].uuid
    kinds = {"compute": "python", "mps": "nvidia-cuda-mps-server", "file": "dcgm"}
    for kind, name in kinds.items():
        code, said = command("start-process", whole, "--kind", kind, "--name", name, "--owner", "pod-1")
        assert (code, said.split()[0]) == (0, "pid")
    found = SimulatedBackend(command.file).processes(whole, whole)
    assert [(holder.kind, holder.name) for holder in found] == list(kinds.items())
    assert {holder.owner for holder in found} == {"pod-1"}


def test_a_gpu_kept_for_one_process_takes_only_what_its_mps_server_serves(command):
    """A tenant that does not find its daemon would run, where real hardware stops it."""
    whole = command.file.read().gpus[1].uuid
    SimulatedBackend(command.file).set_exclusive_process(whole, exclusive=True)
    assert command("start-process", whole, "--kind", "file")[0] == 0
    _, first = command("start-process", whole)
    code, said = command("start-process", whole)
    assert (code, "EXCLUSIVE_PROCESS" in said) == (1, True)
    assert command("stop-process", first.split()[1])[0] == 0
    assert command("start-process", whole, "--kind", "mps")[0] == 0
    assert command("start-process", whole, "--kind", "mps")[0] == 1
    assert command("start-process", whole)[0] == 0
    assert command("reboot")[0] == 0
    assert [gpu.exclusive_process for gpu in command.file.read().gpus] == [False, False]


def test_a_person_makes_and_destroys_instances_and_is_told_what_is_there(command):
    code, uuid = command("create", "0", "3g.20gb", "4")
    assert (code, uuid[:4]) == (0, "MIG-")
    shown = msgspec.json.decode(command("show")[1])
    assert [instance["uuid"] for instance in shown["gpus"][0]["instances"]] == [uuid]
    for wrong in (("create", "0", "1g.5gb", "5"), ("create", "0", "9g.1gb", "0"), ("create", "7", "1g.5gb", "0")):
        code, said = command(*wrong)
        assert code == 1
        assert said.startswith("sluice-node-agent: ")
    _, pid = command("start-process", uuid)
    assert command("destroy", "0", "4")[0] == 1
    command("stop-process", pid.split()[1])
    assert command("destroy", "0", "4") == (0, "destroyed 3g.20gb at 4:4")
    assert command("destroy", "0", "4")[0] == 1


def test_everything_that_was_ever_on_the_devices_is_reported_on_request(tmp_path, file, gpus, a100, ids):
    """A judge that only looks now and then would miss an instance that was destroyed under a pod and made again."""
    log = tmp_path / "n1.json.log"
    gi_id = gpus.create_gpu_instance(a100, ids["1g.5gb"], 0, 1)
    assert not log.exists()  # not requested yet
    log.touch()
    uuid = gpus.create_compute_instance(a100, gi_id)
    gpus.destroy_compute_instance(a100, gi_id, uuid)
    gpus.read()
    lines = [line.partition(b" ") for line in log.read_bytes().splitlines()]
    states = [msgspec.json.decode(state, type=Hardware) for _, _, state in lines]
    assert [state.gpus[0].instances[0].uuid for state in states] == [uuid, ""]
    assert states[-1] == file.read()
    assert int(lines[0][0]) <= int(lines[1][0]) <= time.time_ns()


def test_a_model_that_the_fleet_spells_out_is_simulated_as_written(tmp_path):
    """`sluice up` could not rehearse a GPU that came out after this release."""
    profiles = '{name="1g.12gb", memory_mib=11264, multiprocessors=16, starts=[0, 1, 2], size=1}'
    text = f'{{model="NVIDIA X100", count=2, memory_mib=98304, multiprocessors=132, profiles=[{profiles}]}}'
    hardware = HardwareFile(tmp_path / "n1.json")
    hardware.make(_fleet(text))
    hardware.make(_fleet(text))
    simulated = SimulatedBackend(hardware)
    first = simulated.read()[0]
    assert (first.model, first.memory_mib, first.memory_slices) == ("NVIDIA X100", 98304, 3)
    gi_id = simulated.create_gpu_instance(first.uuid, first.profiles[0].profile_id, 1, 1)
    assert simulated.create_compute_instance(first.uuid, gi_id).startswith("MIG-")
    assert _spans(simulated) == [("1g.12gb", 1, 1)]
    with pytest.raises(HardwareFileError, match="other GPUs"):
        hardware.make(_fleet(text.replace("11264", "11008")))


def test_a_gpu_without_mig_is_simulated_by_its_name_alone(tmp_path):
    """A fleet of L4 and T4 would need their sizes looked up first."""
    hardware = HardwareFile(tmp_path / "n1.json")
    hardware.make(_fleet('{model="l4"}, {model="Tesla T4"}'))
    told = [(gpu.model, gpu.mig_enabled, gpu.memory_mib, gpu.profiles) for gpu in SimulatedBackend(hardware).read()]
    assert told == [("NVIDIA L4", False, 23034, ()), ("Tesla T4", False, 15360, ())]
