"""`check` of rights, files and directories: what the agent cannot do is found before a pod waits for it."""

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from factories.gpus.machine import POD_PID, found, only

from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.findings import CAP_SYS_ADMIN, Check, worst
from sluice_node_agent.shell.paths import why_no_homes


def test_a_user_without_rights_is_told(well):
    """Its agent makes no slice; root without capabilities is no root either."""
    machine = replace(well, uid=1000, capabilities=0, mps_control="off", root=well.root / "nowhere")
    told = found(machine, Check.RIGHTS)
    assert [finding.level for finding in told] == ["problem", "warning"]
    assert "may not create GPU instances" in told[0].what
    assert "cannot say by whom" in told[1].what
    told = found(replace(well, capabilities=0, root=well.root / "nowhere"), Check.RIGHTS)
    assert "problem" in {finding.level for finding in told}


def test_mps_needs_root(well):
    """An MPS server for another user can be started by root alone."""
    told = found(replace(well, uid=1000, capabilities=1 << CAP_SYS_ADMIN), Check.RIGHTS)
    assert ["MPS" in finding.what for finding in told if finding.level == "problem"] == [True]


def test_missing_device_files_of_mig_are_told_with_their_name(well):
    (well.root / "dev/nvidia-caps/nvidia-cap2").unlink()
    told = only(well, Check.CAPABILITY_FILES, "problem")
    assert "nvidia-cap2" in told.what
    assert "mig/monitor" in told.remedy


def test_the_device_file_of_an_instance_is_looked_for_too(well):
    access = well.root / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"
    access.parent.mkdir(parents=True)
    access.write_text("DeviceFileMinor: 67\nDeviceFileMode: 292\n")
    assert "nvidia-cap67" in only(well, Check.CAPABILITY_FILES, "problem").what
    (well.root / "dev/nvidia-caps/nvidia-cap67").touch()
    assert "all 3 capability files" in found(well, Check.CAPABILITY_FILES)[0].what


def test_a_container_without_the_hosts_processes_is_told(well):
    """Else a slice is taken away under a tenant that still computes."""
    own = well.processes.root / "self/ns/pid"
    own.unlink()
    own.symlink_to("pid:[4026532819]")
    assert "ok" in {finding.level for finding in found(well, Check.HOST_PROCESSES)}, "a kubelet is seen: kind, k3d"
    (well.processes.root / "900/comm").write_text("python\n")
    assert "hostPID" in only(well, Check.HOST_PROCESSES, "problem").remedy


def test_a_kubelet_whose_pods_have_no_cgroups_is_told(well):
    """No process of any pod would be found, and every slice given back under who still runs."""
    (well.processes.root / str(POD_PID) / "cgroup").write_text("0::/system.slice/containerd.service/7f7f\n")
    assert "pod<uid>" in only(well, Check.HOST_PROCESSES, "warning").remedy


def closed(monkeypatch, folder):
    """What is in a folder may not be looked at, as its mode 0700 has it for others, and hidepid=1 for processes."""
    real = Path.stat

    def stat(self, **how):
        if folder in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, **how)

    monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.parametrize("hidepid", [1, 2])
def test_processes_that_may_not_be_looked_into_are_told(well, monkeypatch, hidepid):
    """`check` ends in a traceback instead of saying what is wrong, or calls a node well that sees no tenant."""
    if hidepid == 1:
        closed(monkeypatch, well.processes.root / "1")
    else:
        (well.processes.root / "1/cgroup").unlink()
    assert "hidepid" in only(well, Check.HOST_PROCESSES, "problem").what


def test_a_data_directory_that_may_not_be_looked_into_is_told(well, monkeypatch):
    """A check by another user than the agent's ends in a traceback, without any finding."""
    closed(monkeypatch, well.data_dir)
    monkeypatch.setattr(os, "access", lambda path, _mode, **_: Path(path) != well.data_dir)
    told = found(well, Check.DIRECTORIES)
    assert {finding.level for finding in told} == {"problem"}
    assert f"{well.data_dir} cannot be written" in told[0].what


def test_no_proc_is_told(well):
    """An agent that sees no process at all gives every slice back under who still runs."""
    only(replace(well, processes=Processes(well.root / "nowhere")), Check.HOST_PROCESSES, "problem")


def test_a_world_writable_data_directory_is_reported(well):
    """A tenant could put a socket in the agent's place."""
    well.data_dir.chmod(0o777)
    told = found(well, Check.DIRECTORIES)
    assert {finding.level for finding in told} == {"problem"}
    assert f"chmod o-w {well.data_dir}" in {finding.remedy for finding in told}


def test_a_file_in_the_place_of_a_directory_is_told(well):
    (well.data_dir / "agents").write_text("")
    assert "is no directory" in only(well, Check.DIRECTORIES, "problem").what


def test_a_foreign_directory_is_reported(well, monkeypatch):
    """The kernel decides; root gets a read-only mount reported in the same way."""
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK or Path(path) != well.data_dir)
    told = found(well, Check.DIRECTORIES)
    assert f"{well.data_dir} cannot be written by user 0" in told[0].what
    assert well.data_dir.name in told[0].remedy


def test_an_mps_directory_that_tenants_cannot_reach_is_told(well):
    place = well.data_dir / "deep/mps/n1"
    place.parent.mkdir(parents=True)
    place.parent.chmod(0o700)
    told = found(replace(well, mps_root=place), Check.DIRECTORIES)
    assert {finding.level for finding in told} == {"warning"}
    assert "others may not pass through" in told[0].what
    assert not found(replace(well, mps_root=place, mps_control="off"), Check.DIRECTORIES)[0].remedy


def test_paths_too_long_for_a_socket_are_told_with_how_much(well, tmp_path):
    """The kernel would refuse them one daemon after the other."""
    long = Path("/") / ("x" * 90)
    told = only(replace(well, mps_root=long), Check.SOCKET_PATHS, "problem")
    over = int(told.remedy.split(" at least ")[1].split(" ")[0])
    shorter = Path("/") / ("x" * (90 - over))
    assert worst(found(replace(well, mps_root=shorter), Check.SOCKET_PATHS)) == "ok"
    assert worst(found(replace(well, mps_root=shorter / "y"), Check.SOCKET_PATHS)) == "problem"
    assert worst(found(replace(well, data_dir=long, mps_root=shorter), Check.SOCKET_PATHS)) == "warning"


@pytest.mark.parametrize("length", range(50, 70))
def test_check_passes_just_the_mps_directories_that_the_agent_takes(well, length):
    """All is well, says `check`, and the agent does not start, or starts and hands out no shares."""
    root = Path("/" + "x" * (length - 1))
    passed = worst(found(replace(well, mps_root=root), Check.SOCKET_PATHS)) == "ok"
    assert passed is (why_no_homes(root) == "")


def test_the_bound_of_a_sockets_path_is_the_kernels(tmp_path):
    """Else the check would pass what cannot work, or refuse what could."""
    longest = tmp_path / ("s" * (107 - len(str(tmp_path)) - 1))
    with socket.socket(socket.AF_UNIX) as made, socket.socket(socket.AF_UNIX) as refused:
        made.bind(str(longest))
        with pytest.raises(OSError, match="path too long"):
            refused.bind(f"{longest}s")
