"""MPS daemons that cannot start, and that end: a clear error, and no process or directory left behind."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from factories.gpus.mps import GPU, H1, Place, refusal_of, start_order, stop_order
from factories.waiting import wait_until

from sluice.contracts.ids import HomeId
from sluice_node_agent.device.mps.daemons import MpsDaemons

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_missing_binary_is_said(place: Place) -> None:
    """An operator has to know what to install."""
    daemons = MpsDaemons(place.root, place.path / "none", place.processes)
    assert (
        refusal_of(lambda: daemons.start(start_order()))
        == f"{place.path}/none cannot be run: No such file or directory"
    )


def test_a_directory_that_cannot_be_made_is_said(place: Place) -> None:
    """An operator has to know which."""
    (place.path / "file").write_text("")
    daemons = MpsDaemons(place.path / "file" / "r", place.control, place.processes)
    said = refusal_of(lambda: daemons.start(start_order()))
    assert said.startswith("home h1: its directories cannot be made: ")
    assert str(place.path / "file") in said


def test_a_path_too_long_for_a_socket_is_refused_before_anything_is_made(place: Place) -> None:
    """The real daemon only reports that it cannot find itself."""
    root = place.path / ("x" * 90)
    said = refusal_of(lambda: MpsDaemons(root, place.control, place.processes).start(start_order()))
    assert "may have 107; set mps_dir to a path that is" in said
    assert not root.exists()
    shorter = place.path / ("x" * (90 - int(said.split(" that is ")[1].split()[0])))
    MpsDaemons(shorter, place.control, place.processes).start(start_order())


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", ".."])
def test_a_home_never_leaves_its_root(place: Place, name: str) -> None:
    """A name with a path could remove anything."""
    assert "is no home's name" in refusal_of(lambda: place.daemons.stop(stop_order(HomeId(name))))


def test_a_server_that_cannot_start_is_said_with_its_own_words(place: Place) -> None:
    """As on a missing device: the daemon itself starts all the same."""
    place.switch("server_fails")
    said = refusal_of(lambda: place.daemons.start(start_order()))
    assert "its server for uid 1000 ended at its start" in said
    assert "Invalid CUDA_VISIBLE_DEVICES" in said
    place.stop()


@AS_ROOT
def test_a_closed_parent_directory_is_named_when_a_server_fails(place: Place) -> None:
    """The server runs as the tenant and opens its daemon by the full path; the real one fails without a reason."""
    place.switch("server_fails")
    place.path.chmod(0o700)
    assert f"uid 1000 cannot pass {place.path} (mode 700)" in refusal_of(lambda: place.daemons.start(start_order()))


def test_a_server_that_is_never_ready_is_given_up(place: Place) -> None:
    """A start must end."""
    place.switch("never_ready")
    assert "was not ready within 3 s" in refusal_of(lambda: place.hurried().start(start_order()))
    place.stop()


# -- ending -----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_home_is_left(place: Place) -> None:
    """A leaked daemon holds the device against all later tenants (defects 3 and 7)."""
    running = place.daemons.start(start_order())
    place.daemons.stop(stop_order(H1, *running))
    assert place.left() == []
    assert list(place.root.iterdir()) == []
    place.daemons.stop(stop_order(H1, *running))  # twice is once


def test_a_home_ends_although_clients_are_still_there(place: Place) -> None:
    """`quit` alone waits for them without end."""
    place.daemons.start(start_order())
    client = place.client()
    client.hear()
    place.daemons.stop(stop_order())
    assert client.hear()["error"]
    assert place.left() == []


@pytest.mark.parametrize("how", ["quit_hangs", "stopped"])
def test_a_daemon_that_does_not_quit_is_killed(place: Place, how: str) -> None:
    """A hung daemon would keep the device."""
    pid, _ = place.daemons.start(start_order())
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
    else:
        place.switch(how)
    place.hurried().stop(stop_order())
    assert place.left() == []
    assert not (place.root / H1).exists()


def test_the_server_of_a_dead_daemon_is_ended(place: Place) -> None:
    """It would hold the device, unnoticed."""
    pid, started_at = place.daemons.start(start_order())
    place.kill(pid)
    assert len(place.left()) == 1
    place.reborn().stop(stop_order(H1, pid, started_at))
    assert place.left() == []


def test_no_foreign_process_is_killed(place: Place) -> None:
    """Not one that reuses the daemon's pid, not one with the same name, not a tenant's that poses as the server."""
    place.daemons.start(start_order())
    foreign = MpsDaemons(place.path / "o", place.control, place.processes)
    foreign_pid, _ = foreign.start(start_order(H1))
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(place.root / H1 / "pipe"), "CUDA_VISIBLE_DEVICES": GPU}
    script = place.path / "nvidia-cuda-mps-server"
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o755)
    bystanders = [
        subprocess.Popen(["/bin/sleep", "60"], env=environment),
        subprocess.Popen([script], stdin=subprocess.PIPE, env=environment),
    ]
    try:
        place.processes.pods[bystanders[1].pid] = "pod-1"
        wait_until(lambda: place.processes.name_of(bystanders[1].pid) == "nvidia-cuda-mps", "it is called so")
        place.daemons.stop(stop_order(H1, bystanders[0].pid, place.processes.started_at(bystanders[0].pid)))
        assert [process.poll() for process in bystanders] == [None, None]
        assert place.processes.started_at(foreign_pid)
    finally:
        for process in bystanders:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
    foreign.stop(stop_order())


def test_a_home_whose_owner_is_unreadable_can_be_stopped(place: Place) -> None:
    """A disk error would make a daemon impossible to end."""
    place.daemons.start(start_order())
    (place.root / H1 / "home.json").write_text("\0\0\0")
    place.stop()
    assert not (place.root / H1).exists()


def test_the_agent_itself_leaks_neither_files_nor_zombies(place: Place) -> None:
    """It runs for months."""
    place.daemons.start(start_order())
    place.daemons.stop(stop_order())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        place.seen(place.daemons.start(start_order()))
        place.daemons.stop(stop_order())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE] == []
