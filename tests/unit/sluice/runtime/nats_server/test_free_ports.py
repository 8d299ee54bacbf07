"""Ports of servers that are not there yet: a second system that starts at the same moment takes others."""

import subprocess
import sys

from sluice.runtime.nats_server import free_ports


def test_two_processes_choose_different_ports_before_either_listens(monkeypatch):
    """Both brokers would use one port, and the clients of the one be refused by the other."""
    monkeypatch.setattr(free_ports, "OURS", range(10_000, 10_100))
    ours = set(free_ports.free_ports(40))
    program = (
        "from sluice.runtime.nats_server import free_ports\n"
        "free_ports.OURS = range(10_000, 10_100)\n"
        "print(*free_ports.free_ports(30))"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs = {int(word) for word in done.stdout.split()}
    assert (len(ours), len(theirs), done.stderr) == (40, 30, "")
    assert not ours & theirs


def test_a_process_that_chooses_for_long_keeps_its_files():
    """A test run chooses thousands of ports: it would have no file left to open."""
    for _ in range(3):
        free_ports.free_ports(free_ports.CLAIMS_MAX // 2)
    assert len(free_ports._CLAIMS) == free_ports.CLAIMS_MAX
