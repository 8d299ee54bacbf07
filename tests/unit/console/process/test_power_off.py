"""What ends the MPS daemons of simulated nodes: all of theirs, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice_console.shell.process import power_off as module
from sluice_console.shell.process.power_off import power_off

FOREVER = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def start():
    """Starts processes that stay until they are ended; none is left."""
    with ExitStack() as stack:

        def begin(name: str, **variables: str) -> subprocess.Popen:
            process = subprocess.Popen(
                (sys.executable, "-c", FOREVER, name), env=os.environ | variables, stdout=subprocess.PIPE
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
            assert process.stdout.readline() == b"up\n"
            return process

        yield begin


def test_only_the_daemons_of_this_data_directory_are_ended(start, tmp_path: Path):
    """Another system's daemons, or a tenant's own process, would be killed by somebody else's Ctrl-C."""
    mine, other = tmp_path / "data", tmp_path / "data-2"
    daemon = start("nvidia-cuda-mps-control", SLUICE_SIMULATED_HARDWARE=f"{mine}/hardware/n.json")
    server = start("nvidia-cuda-mps-server", SLUICE_SIMULATED_HARDWARE=f"{mine}/hardware/n.json")
    spared = [
        start("nvidia-cuda-mps-control", SLUICE_SIMULATED_HARDWARE=f"{other}/hardware/n.json"),
        start("nvidia-cuda-mps-control"),
        start("train.py", SLUICE_SIMULATED_HARDWARE=f"{mine}/hardware/n.json"),
    ]
    assert power_off(mine)
    assert (daemon.wait(10), server.wait(10)) == (-9, -9)
    assert [process.poll() for process in spared] == [None, None, None]


def test_it_waits_for_an_agent_that_could_still_start_a_daemon(start, tmp_path: Path):
    """A daemon that is started a moment later would stay for ever."""
    agent = start("sluice_node_agent", SLUICE_DATA_DIR=str(tmp_path))
    assert power_off(tmp_path, within_s=0.2)
    assert agent.poll() is None
    program = switch(tmp_path)
    program.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.5)
    agent.kill()
    assert program.wait(20) == 0


def test_the_end_of_its_input_ends_the_daemons_and_a_ctrl_c_does_not(start, tmp_path: Path):
    """Ctrl-C goes to all of a terminal: the machine must not be off before its agents have stopped."""
    daemon = start("nvidia-cuda-mps-control", SLUICE_SIMULATED_HARDWARE=f"{tmp_path}/hardware/n.json")
    program = switch(tmp_path)
    deadline = time.monotonic() + 10
    while not ignores(program.pid, signal.SIGINT):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process does it
    program.send_signal(signal.SIGINT)
    assert daemon.poll() is None
    program.stdin.close()
    assert daemon.wait(20) == -9
    assert program.wait(20) == 0


def ignores(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return bool(mask >> (number - 1) & 1)


def switch(data_dir: Path) -> subprocess.Popen:
    command = (sys.executable, "-I", "-S", module.__file__, str(data_dir))
    return subprocess.Popen(command, stdin=subprocess.PIPE)
