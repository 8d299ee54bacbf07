"""What tests start is gone after them, also when it did not stop as it should."""

import subprocess
import sys

import psutil
from factories.processes import kill_with_children

PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
cleaner = subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE)
deaf = subprocess.Popen(["sleep", "600"])
print(deaf.pid, flush=True)
time.sleep(600)
"""
CLEANER = """
import pathlib, sys
sys.stdin.read()
pathlib.Path(sys.argv[1]).touch()
"""
"""As the program that ends simulated nodes' MPS daemons, which have no parent."""


def test_a_system_that_does_not_stop_leaves_no_daemon(tmp_path, monkeypatch):
    """An MPS daemon stayed on the machine after a run in which every `sluice up` was deaf to Ctrl-C."""
    monkeypatch.setattr("factories.processes.CLEANED_UP_WITHIN_S", 2.0)
    cleaned = tmp_path / "cleaned"
    command = (sys.executable, "-S", "-c", PARENT, CLEANER, str(cleaned))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        deaf = int(parent.stdout.readline())
        left = kill_with_children(parent)
    assert cleaned.exists(), "who cleans up when the parent is gone was killed before"
    assert deaf in [process.pid for process in left]
    assert not psutil.pid_exists(deaf) or psutil.Process(deaf).status() == psutil.STATUS_ZOMBIE
