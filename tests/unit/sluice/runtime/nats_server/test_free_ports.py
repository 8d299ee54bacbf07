"""Ports for servers that start later: they stay free until then."""

import socket
from pathlib import Path

import pytest

from sluice.runtime.nats_server import free_ports as ports
from sluice.runtime.nats_server.free_ports import LOOPBACK, free_ports


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


def test_nothing_is_chosen_of_what_somebody_listens_on(systems: Path, monkeypatch: pytest.MonkeyPatch):
    """A broker that cannot listen ends at once."""
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


def test_another_process_that_chooses_in_the_same_moment_seldom_has_the_same(systems: Path):
    """Two `sluice up` of one machine: chosen from below in order, every port would be chosen by both."""
    systems.write_text("32768\t60999\n")
    assert any(not {*free_ports(3)} & {*free_ports(3)} for _ in range(5))
