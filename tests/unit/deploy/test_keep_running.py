"""A container's program is started again at once: a kubelet would wait for minutes after a few kills."""

import os
import signal
import subprocess
from pathlib import Path

from deploy_check import DEPLOY
from factories.waiting import wait_until

from sluice.runtime.service import EXIT_NEW_CONTAINER

PROGRAM = DEPLOY / "docker" / "keep-running"


def pids(tmp_path: Path) -> list[int]:
    file = tmp_path / "pids"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def kept(tmp_path: Path, script: str) -> subprocess.Popen[bytes]:
    """A program that notes its process id, under `keep-running`."""
    return subprocess.Popen([PROGRAM, "sh", "-c", f"echo $$ >> {tmp_path}/pids; {script}"])


def test_a_program_that_is_killed_runs_again_at_once(tmp_path: Path) -> None:
    """No pod of the node could start or end for a minute."""
    with kept(tmp_path, "exec sleep 60") as process:
        wait_until(lambda: len(pids(tmp_path)) == 1, "it runs")
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        wait_until(lambda: len(pids(tmp_path)) == 2, "it runs again", within_s=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pids(tmp_path)[1]}").exists()


def test_a_stop_waits_for_the_program_and_has_its_exit_code(tmp_path: Path) -> None:
    """A driver that is cut off leaves its sockets to a kubelet that calls them."""
    with kept(tmp_path, f"trap 'echo done > {tmp_path}/end; exit 7' TERM; while :; do sleep 0.05; done") as process:
        wait_until(lambda: len(pids(tmp_path)) == 1, "it runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 7
    assert (tmp_path / "end").exists()
    assert len(pids(tmp_path)) == 1


def test_a_program_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    with kept(tmp_path, "exit 0") as process:
        assert process.wait(10) == 0
    assert len(pids(tmp_path)) == 1


def test_a_program_that_needs_a_new_container_gets_one(tmp_path: Path) -> None:
    """Its mount leads to a folder that was removed on the node: started again here, it would find that mount again."""
    with kept(tmp_path, f"exit {EXIT_NEW_CONTAINER}") as process:
        assert process.wait(10) == EXIT_NEW_CONTAINER
    assert len(pids(tmp_path)) == 1
