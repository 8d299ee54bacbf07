"""Shared devices with real MPS processes: started with their limits, for one tenant, and found again."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from factories.gpus.mps import GPU, H1, H2, STRANGER, TENANT, Place, refusal_of, start_order, stop_order
from factories.waiting import wait_until

from sluice.contracts.ids import HomeId
from sluice_node_agent.core.events import FoundMpsHome
from sluice_node_agent.core.instructions import WatchMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.simulated.mps_program import SWITCHES_VARIABLE

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


# -- starting ---------------------------------------------------------------------------------------------------------


def test_tenants_of_a_home_get_no_more_than_was_ordered(place: Place) -> None:
    """A missing limit lets one tenant take the memory of all."""
    place.daemons.start(start_order())
    client = place.client()
    ordered = {"active_thread_percentage": 30.0, "memory_mib": 1500}
    assert client.hear() | {"server": 0} == {"served": True, "server": 0} | ordered
    assert client.allocate(1500) == {"held_mib": 1500}
    assert client.allocate(1)["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    lower = place.client(options=("--memory", "100", "--percentage", "5")).hear()
    assert (lower["active_thread_percentage"], lower["memory_mib"]) == (5.0, 100)
    higher = place.client(options=("--memory", "9000", "--percentage", "90")).hear()
    assert (higher["active_thread_percentage"], higher["memory_mib"]) == (30.0, 1500)


def test_a_home_names_its_tenants_and_lets_no_other_in(place: Place) -> None:
    """Else the next agent cannot know whose daemon runs there, and a neighbour connects to it."""
    place.daemons.start(start_order())
    home = place.root / H1
    said = json.loads((home / "home.json").read_bytes())
    assert said == {"gpu": GPU, "device": GPU, "namespace": "team-a", "uid": TENANT, "agent_pod": ""}
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (place.root, home, home / "pipe", home / "log")}
    assert modes[place.root] == modes[home] == 0o711
    assert modes[home / "log"] == 0o700
    assert modes[home / "pipe"] & 0o007 == 0
    assert {path.stat().st_uid for path in modes} == {os.geteuid()}


@AS_ROOT
def test_the_kernel_keeps_other_users_out_of_a_home(place: Place) -> None:
    """The sockets are open to all, as the real daemon makes them: the directory is the only gate."""
    place.daemons.start(start_order())
    pipe = place.root / H1 / "pipe"
    reaches = {}
    for uid in (TENANT, STRANGER):
        command = ["test", "-S", str(pipe / "control")]
        reaches[uid] = subprocess.run(command, user=uid, group=uid, extra_groups=[], check=False).returncode
    assert reaches == {TENANT: 0, STRANGER: 1}
    touch = ["touch", str(pipe / "x")]
    written = subprocess.run(touch, user=TENANT, group=TENANT, extra_groups=[], stderr=subprocess.DEVNULL, check=False)
    assert written.returncode != 0, "a tenant who may write here could replace the daemon's socket"


@AS_ROOT
def test_the_server_runs_as_the_tenants_user(place: Place) -> None:
    """A root server for a tenant of uid 1000 would let it become root."""
    daemon, _ = place.daemons.start(start_order())
    users = {process.pid: process.uids().effective for process in place.left()}
    assert users.pop(daemon) == 0
    assert list(users.values()) == [TENANT]


def test_a_daemon_gets_nothing_of_mps_from_the_agents_environment(place: Place, monkeypatch) -> None:
    """A limit or a device set in an operator's shell would silently hold for all tenants."""
    for name in ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, "7")
    pid, _ = place.reborn().start(start_order())
    environment, home = psutil.Process(pid).environ(), place.root / H1
    for name in ("PATH", "LD_LIBRARY_PATH", "LC_CTYPE"):
        environment.pop(name, None)
    assert environment == {
        "CUDA_VISIBLE_DEVICES": GPU,
        "CUDA_MPS_PIPE_DIRECTORY": f"{home}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{home}/log",
        SWITCHES_VARIABLE: str(place.switches),
    }


def test_two_homes_at_once_do_not_mix(place: Place) -> None:
    """A race of two starts keeps their daemons apart (defects 1 and 2)."""
    started: dict[HomeId, tuple[int, int]] = {}

    def start(home: HomeId, device: str, share: int) -> None:
        limits = MpsLimits(active_thread_percentage=share, memory_mib=share * 100)
        started[home] = place.daemons.start(start_order(home, device, limits))

    threads = [threading.Thread(target=start, args=arguments) for arguments in ((H1, GPU, 30), (H2, "MIG-2", 60))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(started.values())) == 2
    assert place.client(H1).hear()["memory_mib"] == 3000
    assert place.client(H2).hear()["memory_mib"] == 6000
    assert [(home.home, home.device, (home.pid, home.started_at)) for home in place.reborn().found()] == [
        (H1, GPU, started[H1]),
        (H2, "MIG-2", started[H2]),
    ]
    place.daemons.stop(stop_order(H1))
    assert place.seen(started[H2], H2).alive


# -- being found again ------------------------------------------------------------------------------------------------


def test_tenants_are_served_on_when_the_agent_is_killed(place: Place) -> None:
    """An upgraded agent leaves the daemons of running pods alive; the next one finds and adopts them."""
    pid, started_at = map(int, _killed_agent(place).split())
    client = place.client()
    assert client.hear()["served"]
    assert place.reborn().found() == (FoundMpsHome(H1, GPU, GPU, "team-a", TENANT, pid, started_at),)
    wider = MpsLimits(active_thread_percentage=50, memory_mib=4000)
    assert place.daemons.start(start_order(limits=wider)) == (pid, started_at)
    assert client.allocate(1000) == {"held_mib": 1000}
    assert place.client().hear()["memory_mib"] == 4000


def _killed_agent(place: Place, runs: int = 1000) -> str:
    """Output of an agent that starts a shared device and is killed then or before n runs of the control binary."""
    script = f"""
import os, signal, sys
from pathlib import Path
from sluice_node_agent.core.instructions import StartMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.processes import Processes

runs = 0

def count(event, arguments):
    global runs
    if event == "subprocess.Popen":
        runs += 1
        if runs == {runs}:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
daemons = MpsDaemons(Path({str(place.root)!r}), Path({str(place.control)!r}), Processes(), timeout_s=30)
limits = MpsLimits(active_thread_percentage=30, memory_mib=1500)
print(*daemons.start(StartMps(1, {H1!r}, {GPU!r}, {GPU!r}, "team-a", {TENANT}, limits)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    agent = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert agent.returncode == -signal.SIGKILL
    return agent.stdout


@pytest.mark.parametrize("runs", range(1, 7))
def test_an_agent_killed_at_any_step_of_a_start_leaves_what_the_next_one_can_use_or_remove(place, runs) -> None:
    """Between the directories, the daemon, its limits and its server: all of it is found, completed or removed."""
    assert _killed_agent(place, runs) == ""
    assert [home.home for home in place.reborn().found()] == [H1]
    if runs % 2:
        pid, _ = place.daemons.start(start_order())
        assert sum(process.pid == pid for process in place.left()) == 1
        assert len(place.left()) == 2
        assert place.client().hear()["memory_mib"] == 1500
    place.stop()
    assert place.daemons.found() == ()


def test_a_dead_daemon_is_not_taken_for_a_running_one(place: Place) -> None:
    """Its sockets and pid file stay when it is killed, and some stay when it quits: files are no proof (defect 3)."""
    pid, started_at = place.daemons.start(start_order())
    place.kill(pid)
    assert (place.root / H1 / "pipe" / "control").exists()
    assert [(home.home, home.pid) for home in place.reborn().found()] == [(H1, 0)]
    assert not place.seen((pid, started_at)).alive


def test_a_daemon_that_was_killed_is_started_again(place: Place) -> None:
    """Else tenants wait on a dead socket, or two servers fight for the device."""
    pid, started_at = place.daemons.start(start_order())
    client = place.client()
    assert client.hear()["served"]
    orphan = next(process for process in place.left() if process.pid != pid)
    place.kill(pid)
    assert orphan.is_running(), "the server outlives its daemon: it has to be found"
    again = place.daemons.start(start_order())
    assert again != (pid, started_at)
    assert place.processes.started_at(orphan.pid) == 0
    assert client.hear()["error"]
    assert place.client().hear()["served"]
    assert len(place.left()) == 2
    assert place.seen(again).alive


def test_a_home_whose_agent_died_before_its_daemon_started_is_known(place: Place) -> None:
    """Its tenant is on disk first: the leftover has a name, and can be started or removed."""
    place.switch("start_fails")
    assert "-d failed with exit status 1" in refusal_of(lambda: place.daemons.start(start_order()))
    assert [(home.home, home.pid) for home in place.daemons.found()] == [(H1, 0)]
    place.switch()
    pid, _ = place.daemons.start(start_order())
    assert pid
    place.daemons.stop(stop_order())
    assert place.daemons.found() == ()


def test_a_homes_name_is_not_used_for_another_tenant(place: Place) -> None:
    """Else the second tenant reaches the first one's daemon."""
    place.daemons.start(start_order())
    assert "uid 1000 of namespace team-a" in refusal_of(lambda: place.daemons.start(start_order(uid=STRANGER)))


def test_what_is_no_home_is_left_alone(place: Place) -> None:
    """A foreign directory there may be its owner's only copy."""
    place.daemons.start(start_order())
    (place.root / "backup").mkdir()
    (place.root / "notes.txt").write_text("mine")
    (place.root / "broken").mkdir()
    (place.root / "broken" / "home.json").write_text("{")
    assert [home.home for home in place.reborn().found()] == [H1]
    assert (place.root / "notes.txt").read_text() == "mine"
    assert (place.root / "broken" / "home.json").exists()


def test_there_is_nothing_to_find_before_the_first_home(place: Place) -> None:
    """An agent on a fresh node must start."""
    assert place.daemons.found() == ()


def test_a_daemon_whose_server_died_gets_another_with_the_same_limits(place: Place) -> None:
    """An agent that was killed between the two steps goes on; a server without limits must never serve."""
    daemon, started_at = place.daemons.start(start_order())
    next(process for process in place.left() if process.pid != daemon).kill()
    wait_until(lambda: len(place.left()) == 1, "the server dies")
    assert place.reborn().start(start_order()) == (daemon, started_at)
    assert len(place.left()) == 2
    assert place.client().hear()["memory_mib"] == 1500


def release_535(place: Place) -> Path:
    """Control of a release without get_server_status, which it reports: `Unknown command "..."`."""
    old, real = place.path / "old" / "nvidia-cuda-mps-control", str(place.control)
    old.parent.mkdir()
    old.write_text(f"#!/bin/sh\n[ $# -gt 0 ] && exec {real} $*\nsed s/get_server_status/x/ | {real}\n")
    old.chmod(0o755)
    return old


def test_a_daemon_whose_log_says_nothing_of_its_server_any_more_is_taken_over(place: Place) -> None:
    """On 535.261 a daemon whose long log was cut would never be taken for ready again after an agent's restart."""
    old = release_535(place)
    running = MpsDaemons(place.root, old, place.processes, environment=place.environment).start(start_order())
    place.client().hear()
    os.truncate(place.root / H1 / "log" / "control.log", 0)
    reborn = MpsDaemons(place.root, old, place.processes, timeout_s=5.0, environment=place.environment)
    assert reborn.start(start_order()) == running


def test_a_release_that_cannot_say_how_a_server_is_can_be_used(place: Place) -> None:
    """535.261 does not know get_server_status and writes no pid file: readiness is read from the log."""
    old = release_535(place)
    daemons = MpsDaemons(place.root, old, place.processes, environment=place.environment)
    pid, started_at = daemons.start(start_order())
    (place.root / H1 / "pipe" / "nvidia-cuda-mps-control.pid").unlink()
    place.client().hear()
    assert [home.pid for home in daemons.found()] == [pid]
    seen = wait_until(lambda: daemons.look(WatchMps(7, H1, pid, started_at, TENANT)), "it is looked at")
    assert (seen.alive, seen.fault) == (True, "")
    assert len(seen.clients) == 1
    place.switch("never_ready")
    daemons.stop(stop_order())
    daemons = MpsDaemons(place.root, old, place.processes, timeout_s=3.0, environment=place.environment)
    assert "was not ready within 3 s" in refusal_of(lambda: daemons.start(start_order()))
    daemons.stop(stop_order())
    assert place.left() == []
