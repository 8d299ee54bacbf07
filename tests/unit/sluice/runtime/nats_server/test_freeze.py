"""A frozen server: once reported as frozen, it answers nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.nats_server import process as broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which threads of a process run")
BUSY = """
import threading
for _ in range(4):
    threading.Thread(target=lambda: [print(end="", flush=True) for _ in iter(int, 1)], daemon=True).start()
print("on", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def busy():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def states_of(pid: int) -> list[str]:
    return [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]


def test_a_frozen_server_answers_nothing(busy):
    """A test of a hanging broker would be one of a broker that hangs sometimes."""
    for _ in range(20):
        os.kill(busy.pid, signal.SIGSTOP)
        broker.until_stopped(busy.pid)
        assert states_of(busy.pid) == ["T"] * 5
        os.kill(busy.pid, signal.SIGCONT)


def test_a_server_that_goes_on_is_not_called_frozen(busy, monkeypatch):
    """A test of a frozen server would run against a living one."""
    monkeypatch.setattr(broker, "STOP_TIMEOUT_S", 0.05)
    with pytest.raises(broker.BrokerError, match=f"process {busy.pid} still runs 0.05 s after SIGSTOP"):
        broker.until_stopped(busy.pid)
