"""Processes read from /proc: a tenant's process is found under its pod whatever the kubelet calls the cgroup."""

import contextlib
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from factories.descriptors import no_descriptor_left
from factories.waiting import wait_until

from sluice_node_agent.device import processes
from sluice_node_agent.device.processes import Processes, communicate

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
DRIVER_UID = UID.replace("-", "_")
OTHER = "b1b1b1b1-9c1e-4b7a-8f10-2b6c5d4e3f21"
CONTAINER = "7f" * 32

CGROUPS = {
    "v2-systemd-burstable": f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{DRIVER_UID}.slice/"
    f"cri-containerd-{CONTAINER}.scope",
    "v2-systemd-besteffort-crio": "0::/kubepods.slice/kubepods-besteffort.slice/"
    f"kubepods-besteffort-pod{DRIVER_UID}.slice/crio-{CONTAINER}.scope/container",
    "v2-systemd-guaranteed": f"0::/kubepods.slice/kubepods-pod{DRIVER_UID}.slice/cri-containerd-{CONTAINER}.scope",
    "v2-cgroupfs-burstable": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}",
    "v2-cgroupfs-guaranteed": f"0::/kubepods/pod{UID}/{CONTAINER}",
    "v1-cgroupfs-besteffort": f"12:devices:/kubepods/besteffort/pod{UID}/{CONTAINER}\n"
    f"11:memory:/kubepods/besteffort/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{CONTAINER}",
    "v1-hybrid": f"4:devices:/kubepods/burstable/pod{UID}/{CONTAINER}\n0::/system.slice/containerd.service",
    "v1-hybrid-other-order": f"5:pids:/system.slice/containerd.service\n4:devices:/kubepods/pod{UID}/{CONTAINER}",
    "v1-named-controller-with-colon": f"3:name=a:/kubepods/burstable/pod{UID}/{CONTAINER}",
    "kind-systemd": f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{DRIVER_UID}.slice/cri-containerd-{CONTAINER}.scope",
    "kind-cgroupfs": f"9:pids:/docker/{CONTAINER}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}",
    "own-cgroup-root": f"0::/machine.slice/machine-kubepods-pod{DRIVER_UID}.slice/cri-containerd-{CONTAINER}.scope",
    "seen-from-another-cgroup-namespace": f"0::/../../pod{UID}/{CONTAINER}",
    "docker-inside-a-pod": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}/docker/{CONTAINER}",
    "pod-inside-a-pod": f"0::/kubepods/burstable/pod{UID}/{CONTAINER}/kubelet/kubepods/pod{OTHER}/{CONTAINER}",
}
NO_POD = {
    "system service": "0::/system.slice/nvidia-persistenced.service",
    "podman": f"0::/machine.slice/libpod-{CONTAINER}.scope\n1:name=systemd:/machine.slice/podman-{UID}.scope",
    "the kubelet's own": "0::/podruntime.slice/kubelet.service",
    "root": "0::/",
    "the kubelet's folder": "0::/kubepods.slice/kubepods-burstable.slice",
    "half a uid": "0::/kubepods/burstable/pod0d2f3a44-9c1e/x",
    "mixed dashes": f"0::/kubepods/pod{UID[:8]}_{UID[9:]}/x",
    "something longer": f"0::/kubepods/pod{UID}aa/x",
    "nonsense": "not a cgroup file at all",
    "nothing": "",
}


def told(root: Path, pid: int, **files: str) -> Processes:
    (root / str(pid)).mkdir(parents=True)
    for name, content in files.items():
        (root / str(pid) / name).write_bytes(content.encode())
    return Processes(root)


@pytest.mark.parametrize("cgroup", CGROUPS.values(), ids=CGROUPS)
def test_a_tenants_process_is_known_under_every_cgroup_layout(tmp_path, cgroup):
    """Else a slice is taken away while its tenant still computes on it."""
    assert told(tmp_path, 40, cgroup=cgroup + "\n").owner_of(40) == UID


@pytest.mark.parametrize("cgroup", NO_POD.values(), ids=NO_POD)
def test_a_process_of_the_node_is_of_no_pod(tmp_path, cgroup):
    """Else a slice would wait for a daemon of the node that never ends."""
    assert not told(tmp_path, 40, cgroup=cgroup).owner_of(40)


def test_a_static_pods_hash_is_its_uid(tmp_path):
    """The kubelet names static pods by a hash without dashes; their processes are tenants' too."""
    digest = "5f3c" * 8
    cgroup = f"0::/kubepods.slice/kubepods-burstable-pod{digest}.slice/x.scope"
    assert told(tmp_path, 40, cgroup=cgroup).owner_of(40) == digest


def test_a_process_that_vanishes_while_it_is_read_is_told_as_nothing(monkeypatch):
    """The file opens, and the read fails with ESRCH: as with real processes that end in between."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Path(f"/proc/{child.pid}/stat").open("rb") as held:
        child.communicate(b"\n")
        monkeypatch.setattr(Path, "open", lambda *_: held)
        assert Processes().started_at(child.pid) == 0


FIELDS = " ".join(str(number) for number in range(4, 53))
"""Of /proc/<pid>/stat after the state: each is its own number."""


@pytest.mark.parametrize("name", ["python3", "a b", "evil) S 1 1", ") R 0", "(("])
def test_the_start_is_found_behind_any_name(tmp_path, name):
    """A process may call itself anything; with a wrong start time the agent would kill, or spare, another one."""
    seen = told(tmp_path, 40, stat=f"40 ({name}) S {FIELDS}\n", comm=f"{name}\n")
    assert seen.started_at(40) == 22
    assert seen.name_of(40) == name


@pytest.mark.parametrize("state", ["Z", "X", "x"])
def test_a_zombie_does_not_run(tmp_path, state):
    """A daemon that died but was not reaped would count as alive for ever."""
    assert told(tmp_path, 40, stat=f"40 (mps) {state} {FIELDS}\n").started_at(40) == 0


@pytest.mark.parametrize("state", ["T", "t"], ids=["by a signal", "by a debugger"])
def test_a_process_of_which_one_thread_is_stopped_is_stopped(tmp_path, state):
    """If asked to disconnect it, its MPS daemon would answer no request any more."""
    seen = told(tmp_path, 40, stat="40 (python) S 1 1\n")
    assert not seen.is_stopped(40), "no thread of it is there any more"
    for thread, its in ((40, "S"), (41, state)):
        task = tmp_path / "40" / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{thread} (T) (t) {its} 1 1\n", encoding="ascii")
    assert seen.is_stopped(40)
    assert not seen.is_stopped(7), "gone"


def test_a_real_process_has_its_real_name_and_start():
    seen = Processes()
    child = subprocess.Popen(["/bin/sleep", "30"])
    try:
        before, own = seen.started_at(child.pid), seen.started_at(os.getpid())
        assert seen.name_of(child.pid) in {"sleep", "pytest", "python", "python3"}  # the last: before its exec
        assert before >= own > 0
        assert child.pid in set(seen.pids())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert seen.started_at(child.pid) == 0, "a zombie"
    finally:
        child.kill()
        child.wait()
    assert seen.started_at(child.pid) == 0
    assert seen.command_of(os.getpid())[0]


def opened(root: Path, pid: int, *targets: str) -> None:
    folder = root / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)


def test_who_holds_a_device_open_is_found(tmp_path):
    """Else the list of what keeps a slice in use stays empty, and it cannot be freed."""
    opened(tmp_path, 40, "/dev/null", "socket:[1]", "/dev/nvidia0")
    opened(tmp_path, 41, "/dev/nvidia1", "/home/nvidia0.log")
    opened(tmp_path, 42, "/dev/nvidia-caps/nvidia-cap12")
    (tmp_path / "43").mkdir()
    (tmp_path / "sys").mkdir()
    seen = Processes(tmp_path)
    assert seen.with_open({"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"}) == (40, 42)
    assert seen.with_open({"/dev/nvidia7"}) == ()
    assert seen.with_open(()) == ()
    opened(tmp_path, 50, "/dev/zero")
    opened(tmp_path, 51, "/dev/../dev/zero")  # the same device under another name
    opened(tmp_path, 52, "/dev/full", "/dev/null")
    assert seen.with_open({"/dev/zero"}) == (50, 51)


@contextlib.contextmanager
def running(program):
    """The pid of a Python program that has said that it is open, and ends with its input."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "open\n"
            yield child.pid
        finally:
            child.communicate("\n")


def test_real_open_files_are_found_and_our_own_left_out():
    """The agent itself holds every GPU open; it does not wait for itself."""
    with running("f = open('/dev/full'); print('open', flush=True); input()") as pid, Path("/dev/full").open("rb"):
        found = Processes().with_open({"/dev/full"})
    assert pid in found
    assert os.getpid() not in found


def test_a_scan_that_ends_at_its_bound_is_no_answer(tmp_path, monkeypatch):
    """A process behind a million open files would be missed, and its slice given to the next tenant."""
    monkeypatch.setattr(processes, "FDS_MAX", 4)
    opened(tmp_path, 40, "/a", "/b", "/c")
    opened(tmp_path, 41, "/dev/nvidia0")
    assert Processes(tmp_path).with_open({"/dev/nvidia0"}) == (41,)
    opened(tmp_path, 39, "/d")
    with pytest.raises(OSError, match="more than 4 files are open"):
        Processes(tmp_path).with_open({"/dev/nvidia0"})


def test_a_device_behind_very_many_files_is_found(tmp_path, monkeypatch):
    """A tenant that opens 20000 files before the device would not be seen on it."""
    listed = os.scandir

    @contextlib.contextmanager
    def many(place):  # in order, as /proc lists them
        with listed(place) as entries:
            first, *others = sorted(entries, key=lambda entry: entry.name)
            yield [first] * (20_001 if others else 1) + others

    monkeypatch.setattr(os, "scandir", many)
    opened(tmp_path, 40, "/a", "/dev/nvidia0")
    assert Processes(tmp_path).with_open({"/dev/nvidia0"}) == (40,)


def test_files_of_others_are_skipped_where_they_may_not_be_read(tmp_path, monkeypatch):
    """An agent without the right sees less; it does not fail."""
    opened(tmp_path, 40, "/dev/nvidia0")
    opened(tmp_path, 41, "/dev/nvidia0")
    _refuse(monkeypatch, "scandir", tmp_path / "40" / "fd", errno.EACCES)
    assert Processes(tmp_path).with_open({"/dev/nvidia0"}) == (41,)


@pytest.mark.parametrize(("call", "path"), [("scandir", "40/fd"), ("readlink", "40/fd/0"), ("stat", "40/fd/1")])
def test_files_that_could_not_be_looked_at_are_not_taken_for_none(tmp_path, monkeypatch, call, path):
    """An agent without a descriptor or memory left would find a device unused, and give it to the next tenant."""
    opened(tmp_path, 40, "/a", "/dev/full")
    _refuse(monkeypatch, call, tmp_path / path, errno.ENOMEM if call != "scandir" else errno.EMFILE)
    with pytest.raises(OSError, match="refused here"):
        Processes(tmp_path).with_open({"/dev/nvidia0", "/dev/zero"})


def test_who_holds_a_device_is_found_also_when_its_first_thread_has_ended(tmp_path):
    """A program whose main thread has ended (pthread_exit) would not be seen on its device, while it computes."""
    opened(tmp_path, 40)
    (tmp_path / "40" / "stat").write_text("40 (train) Z " + "7 " * 40)
    for thread in (40, 41, 42):
        opened(tmp_path / "40" / "task", thread, *["/dev/null", "/dev/nvidia0"][: thread % 40])
    assert Processes(tmp_path).with_open({"/dev/nvidia0"}) == ()
    (tmp_path / "40" / "task" / "41" / "fd" / "0").unlink()
    assert Processes(tmp_path).with_open({"/dev/nvidia0"}) == (40,)


def test_a_real_process_whose_first_thread_has_ended_is_found():
    """The kernel shows it as a zombie, and its open files at none but its other threads."""
    program = (
        "import ctypes, os, sys, threading\n"
        "f = open('/dev/full')\n"
        "def rest():\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "threading.Thread(target=rest).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with running(program) as pid:
        wait_until(lambda: not Processes().started_at(pid), "its first thread ends")
        assert pid in Processes().with_open({"/dev/full"})


def test_the_last_variable_of_a_long_environment_is_read():
    """A kubelet names each service of its namespace in seven variables; a CDI file's come after all of them."""
    services = {f"A_SERVICE_WITH_A_NAME_{number}_PORT_80_TCP_ADDR": "10.96.0.1" for number in range(2000)}
    environment = services | {"SLUICE_TICKET": "mps-t-1-main"}
    with subprocess.Popen(["cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        child.stdin.write(b"runs\n")
        assert child.stdout.readline() == b"runs\n", "until then it has none"
        assert Processes().environment_of(child.pid)["SLUICE_TICKET"] == "mps-t-1-main"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_program_that_cannot_be_killed_is_not_waited_for(monkeypatch):
    """One that hangs in a GPU's driver would take the agent's threads, one after the other, with all their homes."""
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        communicate(["sleep", "5"], b"", os.environ, 0.1, bytes_max=100)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("ask", ["owner_of", "name_of", "started_at", "is_stopped", "command_of", "environment_of"])
def test_a_process_that_could_not_be_looked_at_is_not_told_as_gone(ask):
    """An agent without a descriptor left takes living daemons for dead, and kills them under their tenants."""
    seen = Processes()
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        getattr(seen, ask)(os.getpid())


def _refuse(monkeypatch, call, path, code):
    """One look at one file fails, as it does to those without a right, a descriptor or memory."""
    real = getattr(os, call)

    def refusing(at, *args, **options):
        if str(at) == str(path):
            raise OSError(code, "refused here", str(at))
        return real(at, *args, **options)

    monkeypatch.setattr(os, call, refusing)
