"""What MPS daemons print and log, read as it was seen of the real ones; and homes' directories."""

import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from sluice.contracts.ids import GpuUuid, HomeId
from sluice_node_agent.core.events import MpsClient
from sluice_node_agent.core.instructions import WatchMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps import control_log
from sluice_node_agent.device.mps.control import MpsControl, MpsProcess, NoAnswerError, limits_in
from sluice_node_agent.device.mps.control_log import ControlLog
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.mps.home_directory import HomeDirectory, HomeOwner, MpsError
from sluice_node_agent.device.mps.termination import Deadline, HomeTermination
from sluice_node_agent.device.processes import Processes

OWNER = HomeOwner(gpu=GpuUuid("GPU-1"), device="MIG-1", namespace="a", uid=1000)
GONE_PID = 4_194_304
"""Above the kernel's highest pid_max: never a process."""


@pytest.mark.parametrize(
    ("lines", "memory_mib", "wrong"),
    [
        (["30.0", "1G"], 1500, ""),
        (["30", "1G"], 1024, ""),
        (["30.0", "1G"], 2047, ""),
        (["30.0", "512M"], 512, ""),
        (["100.0", "30.0", "80G"], 81920, ""),
        (["30.0", "1G"], 2048, "memory limit of device 0 was set to 2048M, reads 1G"),
        (["30.0", "511M"], 512, "memory limit of device 0 was set to 512M, reads 511M"),
        (["30.0"], 512, "memory limit of device 0 was set to 512M, reads nothing"),
        (["100.0", "512M"], 512, "active thread percentage was set to 30, reads 100.0"),
        ([], 512, "active thread percentage was set to 30, reads None"),
    ],
)
def test_a_limit_counts_only_as_it_reads(lines: list[str], memory_mib: int, wrong: str) -> None:
    """535.261 and 550.163 print whole GiB, rounded down; a limit that was not taken must still show."""
    assert limits_in(lines).mismatch(MpsLimits(active_thread_percentage=30, memory_mib=memory_mib)) == wrong


def test_a_pid_that_is_another_process_by_now_is_not_killed() -> None:
    """Between finding a process and killing it, it may end and its pid be given to another."""
    processes = Processes()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as bystander:
        ending, started_at = HomeTermination(processes), processes.started_at(bystander.pid)
        earlier = MpsProcess(bystander.pid, started_at - 1, is_server=False)
        ending.end(HomeId("h"), (earlier, MpsProcess(GONE_PID, 5, is_server=True)), Deadline(5.0))
        bystander.stdin.write(b"still here\n")
        assert bystander.stdout.readline() == b"still here\n"
        ending.end(HomeId("h"), (MpsProcess(bystander.pid, started_at, is_server=False),), Deadline(5.0))
        assert processes.started_at(bystander.pid) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_daemon_that_hangs_at_its_start_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait in the GPU's driver, where nothing kills it; other homes need this thread."""
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    hanging = tmp_path / "control"
    hanging.write_text("#!/bin/sh\nexec sleep 5\n")
    hanging.chmod(0o755)
    control = MpsControl(HomeDirectory(tmp_path, HomeId("h1")), hanging, Processes(), {"PATH": "/usr/bin:/bin"})
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"no answer to '-d' within 0\.1 s"):
        control.launch("GPU-1", 0.1)
    assert time.monotonic() - began < 4


def test_a_client_whose_first_thread_has_ended_is_of_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an inherited home it would be a stranger: the home would take no tenant, and never end."""
    pod, proc = "7d0b1f4e-3c2a-4b1d-9e8f-0a1b2c3d4e5f", tmp_path / "proc"
    for pid, state, cgroup in ((7, "S", "/"), (100, "Z", "/"), (101, "S", f"/kubepods/pod{pod}/c1")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (train) {state} " + "7 " * 40)
        (proc / str(pid) / "cgroup").write_text(f"1:name=systemd:{cgroup}\n")
    (proc / "100" / "task" / "101").mkdir(parents=True)
    monkeypatch.setattr(MpsControl, "servers", lambda *_: (7,))
    monkeypatch.setattr(MpsControl, "state_of", lambda *_: ("ACTIVE", (100,)))
    daemons = MpsDaemons(tmp_path / "r", tmp_path / "control", Processes(proc))
    assert daemons.look(WatchMps(1, HomeId("h"), 7, 7, 1000)).clients == (MpsClient(100, pod),)


def _line(text: str) -> str:
    return f"[2026-11-21 15:19:42.735 Control  1769] {text}\n"


def test_a_client_that_waits_is_known_until_it_ends(tmp_path: Path) -> None:
    """Whether clients in process namespaces that the daemon cannot see (pid 0) still live is unknown."""
    clients = ((os.getpid(), 1000), (os.getppid(), 2000), (GONE_PID, 3000), (0, 4000))
    not_ready = "Server is not ready, push client to pending list"
    lines = [_line(f"NEW CLIENT {pid} from user {user}: {not_ready}") for pid, user in clients]
    lines.append(_line("NEW CLIENT 1 from user 5000: Server already exists"))
    (tmp_path / "control.log").write_text("".join(lines))
    read = ControlLog(tmp_path, Processes())
    read.read()
    assert read.waiting_for_another(1000) == (2000,)
    assert read.waiting_for_another(7) == (1000, 2000)
    read.served((os.getppid(),))
    assert read.waiting_for_another(1000) == ()


def test_a_log_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    log = tmp_path / "control.log"
    read = ControlLog(tmp_path, Processes())
    read.read()  # nothing there yet
    log.write_text(_line("Starting new server 17 for user 500") + _line("NEW SERVER 17: Ready")[:-4])
    read.read()
    assert (read.owner_of(17), read.is_ready(17)) == (500, False)
    with log.open("a") as file:
        file.write(_line("NEW SERVER 17: Ready")[-4:])
    read.read()
    assert read.is_ready(17)
    log.write_text(_line("Server 17 exited with status 0"))
    read.read()
    assert (read.owner_of(17), read.is_ready(17)) == (None, False)


def test_of_a_log_that_grew_large_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that adopts a daemon after a month would read a month."""
    monkeypatch.setattr(control_log, "READ_MAX_BYTES", 1000)
    monkeypatch.setattr(control_log, "LOG_MAX_BYTES", 5000)
    log = tmp_path / "control.log"
    log.write_text(_line("Starting new server 16 for user 400") + _line("UI closed") * 200)
    with log.open("a") as file:
        file.write(_line("Starting new server 17 for user 500"))
    read = ControlLog(tmp_path, Processes())
    read.read()
    assert (read.owner_of(16), read.owner_of(17)) == (None, 500)
    assert log.stat().st_size == 0, "and it was cut"
    log.write_text(_line("NEW SERVER 17: Ready"))
    read.read()
    assert read.is_ready(17)


def test_a_homes_gate_lets_in_one_user_and_stays_ours(tmp_path: Path) -> None:
    """A tenant that owned the directory could put its own daemon there, and the agent would talk to it as root."""
    directory = HomeDirectory(tmp_path / "r", HomeId("h"))
    directory.prepare(OWNER)
    value = os.getxattr(directory.pipe, "system.posix_acl_access")
    (version,) = struct.unpack_from("<I", value)
    entries = {struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)}
    no_id = 0xFFFFFFFF
    owner, user, group, mask, other = 1, 2, 4, 16, 32
    assert version == 2
    assert entries == {(owner, 7, no_id), (user, 5, 1000), (group, 0, no_id), (mask, 5, no_id), (other, 0, no_id)}
    assert directory.pipe.stat().st_uid == os.geteuid()


def test_what_a_dead_daemon_left_is_cleaned(tmp_path: Path) -> None:
    """A stale socket accepts clients without serving them; the logs are kept to show why the daemon died."""
    directory = HomeDirectory(tmp_path, HomeId("h"))
    directory.prepare(OWNER)
    (directory.pipe / "control").write_text("stale")
    (directory.log / "control.log").write_text(_line("Start") + _line("UI closed") + _line("30.0"))
    directory.prepare(OWNER)
    assert list(directory.pipe.iterdir()) == []
    assert directory.last_line("control.log").endswith("] Start")
    assert directory.read() == OWNER


def test_removing_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    directory = HomeDirectory(tmp_path / "r", HomeId("h"))
    directory.prepare(OWNER)
    (directory.log / "link").symlink_to(precious)
    directory.remove()
    assert (precious / "file").read_text() == "mine"
    assert not directory.path.exists()
    directory.remove()  # fine when it is gone


@pytest.mark.parametrize(("mode", "left"), [(0o700, 0o711), (0o775, 0o755), (0o755, 0o755)])
def test_an_mps_directory_of_ours_is_opened_for_passing_only(tmp_path: Path, mode: int, left: int) -> None:
    """A tenant's server has to pass it, and no other user may put a home there."""
    tmp_path.chmod(mode)
    HomeDirectory(tmp_path, HomeId("h")).prepare(OWNER)
    assert tmp_path.stat().st_mode & 0o7777 == left


def test_an_mps_directory_that_others_can_write_in_is_refused(tmp_path: Path) -> None:
    """As /tmp: another user could put a home there; and closing it would break its users."""
    tmp_path.chmod(0o1777)
    with pytest.raises(MpsError, match=r"mode 1777; it must be ours \(uid \d+\) and not writable by others"):
        HomeDirectory(tmp_path, HomeId("h")).prepare(OWNER)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert list(tmp_path.iterdir()) == []
