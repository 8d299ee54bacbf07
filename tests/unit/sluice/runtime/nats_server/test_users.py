"""A broker of one's own: its users, its port, and how it is stopped."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from factories.broker import nats_server
from factories.broker.nats_server import BrokerError, until_stopped

from sluice.contracts.bus.nats_permissions import of_any_agent, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats_server import free_ports as ports
from sluice.runtime.nats_server.free_ports import LOOPBACK, free_ports
from sluice.runtime.nats_server.users import CertifiedUser, authorization

NODE = NodeName("gpu-1.example")


def test_what_agents_may_say_is_offered_to_their_accounts():
    """The server refuses an import without its export: no broker would start."""
    reaching = [each for each in permissions_of(Role.NODE_AGENT, NODE).publish if not each.startswith("hist.")]
    for own, offered in zip(reaching, of_any_agent(), strict=True):
        assert own.replace("agent_gpu-1_example", "*").replace("gpu-1_example", "*") == offered


def test_an_agents_lines_are_few_enough_for_hundreds_of_nodes():
    """In Kubernetes they are all in one Secret of 1 MiB (docs/sizing.md says how many)."""

    def size(nodes: int) -> int:
        names = [NodeName(f"gpu-node-{number:04}.cluster.example") for number in range(nodes)]
        users = [CertifiedUser(permissions_of(Role.NODE_AGENT, name), f"{name}.node") for name in names]
        return len("\n".join(authorization(users)))

    assert size(101) - size(1) < 100 * 960 * 1024 / 500


def test_who_is_known_by_a_certificate_has_no_secret_there():
    text = "\n".join(authorization([CertifiedUser(permissions_of(Role.NODE_AGENT, NODE), "gpu-1.example.node")]))
    assert re.findall(r'user: "([^"]+)"', text) == ["gpu-1.example.node"]
    assert "password" not in text


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "SYSTEMS_FILE", path)
    return path


def test_a_chosen_port_is_not_given_to_a_program_that_asks_for_any(systems: Path):
    """Another program's connection had a service's port, and the service failed to start meanwhile."""
    systems.write_text("10100\t29999\n")
    chosen = free_ports(50)
    assert len(set(chosen)) == 50
    assert all(10_000 <= port < 10_100 for port in chosen)


def test_no_port_in_use_is_chosen(systems: Path, monkeypatch: pytest.MonkeyPatch):
    systems.write_text("1\t1\n")
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(ports, "OURS", range(taken, taken + 1))
        chosen = free_ports(3)
        assert len({*chosen, taken}) == 4


@pytest.mark.parametrize("says", ["1024\t65535\n", None])
def test_a_machine_that_sets_no_port_apart_has_ports_all_the_same(systems: Path, says: str | None):
    """A host may use all ports itself, and a sandbox may hide which."""
    if says is not None:
        systems.write_text(says)
    chosen = free_ports(5)
    assert len(set(chosen)) == 5
    assert all(port > 0 for port in chosen)


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
        process.stdout.readline()
        yield process
        process.kill()


def states_of(pid: int) -> list[str]:
    return [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]


def test_a_frozen_server_answers_nothing(busy):
    """A test of a hanging broker would be one of a broker that hangs sometimes."""
    for _ in range(20):
        os.kill(busy.pid, signal.SIGSTOP)
        until_stopped(busy.pid)
        assert states_of(busy.pid) == ["T"] * 5
        os.kill(busy.pid, signal.SIGCONT)


def test_a_server_that_goes_on_is_not_called_frozen(busy, monkeypatch):
    monkeypatch.setattr(nats_server, "STOP_TIMEOUT_S", 0.05)
    with pytest.raises(BrokerError, match=f"process {busy.pid} still runs 0.05 s after SIGSTOP"):
        until_stopped(busy.pid)
