"""How commands find a running system."""

import os
import tempfile

import pytest

from sluice.runtime.bus import BusError
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live import running_systems as systems
from sluice_console.shell.live.connect import settings_of_console
from sluice_console.shell.live.running_systems import NothingRunningError, announce, find_running, server_url
from sluice_console.shell.process.data_directory import NotStartedError, lock_data_directory, temporary_directory


@pytest.fixture
def place(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.delenv("SLUICE_NATS_URL", raising=False)
    return tmp_path


def running(folder, *, pid=None, port=1):
    data = folder / f"data-{port}"
    data.mkdir()
    where = {"nats_url": f"nats://127.0.0.1:{port}", "data_dir": str(data), "pods_dir": "", "inventory_grpc": ""}
    return systems.RunningSystem(pid=pid or os.getpid(), **where, nodes=(), started_at="")


def test_the_running_system_is_found_and_forgotten_again(place):
    system = running(place)
    announce(system)
    assert server_url(None) == system.nats_url
    systems.retract(system)
    with pytest.raises(NothingRunningError, match="nothing is running"):
        server_url(None)
    assert list((place / "runtime").iterdir()) == []


def test_a_system_whose_process_is_gone_does_not_count(place):
    announce(running(place, pid=2**22 + 1))
    with pytest.raises(NothingRunningError):
        find_running()


def test_a_killed_system_whose_process_id_another_process_has_does_not_count(place):
    """Every command, and `sluice run` too, would ask a broker that is gone until a person finds the file."""
    system = running(place)
    announce(system)
    lock = lock_data_directory(place / "data-1" / systems.LOCK)
    assert find_running() == system
    lock.close()
    with pytest.raises(NothingRunningError):
        find_running()


def test_the_runtime_directory_of_another_user_is_not_used(place, monkeypatch):
    """After `su`, `sluice up` may not write there; after `sudo -E` it would leave a folder that keeps its owner out."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert systems.pointers_dir().name == "sluice-of-4000000001"


def test_where_nothing_can_be_written_nothing_is_running(monkeypatch):
    """A pod whose file system is read-only: `sluice doctor` looks there too, although the server was named."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with pytest.raises(NothingRunningError):
        find_running()
    with pytest.raises(NotStartedError, match="no temporary folder can be made: No usable temporary directory"):
        temporary_directory("sluice-")


def test_an_option_wins_over_the_environment_and_that_over_what_is_running(place, monkeypatch):
    announce(running(place))
    monkeypatch.setenv("SLUICE_NATS_URL", "nats://environment:1")
    assert server_url(None) == "nats://environment:1"
    assert server_url("nats://option:1") == "nats://option:1"


@pytest.mark.parametrize("named", ["127.0.0.1:1", "localhost:1", "nats://localhost:1", "nats://127.0.0.1:1/"])
def test_a_system_of_ones_own_is_known_by_every_spelling(place, named):
    """Its password is found by its URL: by another one, its user would be refused."""
    announce(running(place))
    assert server_url(named) == "nats://127.0.0.1:1"
    assert server_url(f"{named.rstrip('/')}9") == f"{named.rstrip('/')}9"


def test_a_system_that_nobody_could_find_does_not_start(place):
    """A traceback, and a `sluice run` that waits for it would take its own system for that of somebody else."""
    (place / "runtime" / "sluice").touch()
    told = f"{place}/runtime/sluice cannot be written, .*: File exists; XDG_RUNTIME_DIR or TMPDIR must name a folder"
    with pytest.raises(CommandError, match=told):
        announce(running(place))
    assert not list((place / "data-1").iterdir())


def test_a_broken_file_stops_nothing(place):
    system = running(place)
    announce(system)
    (place / "runtime" / "sluice" / "1.json").write_text("{")
    assert find_running() == system


def test_a_system_that_is_not_announced_is_found_by_its_data_directory_only(place):
    """The demo does not become the target of other commands."""
    system = running(place)
    announce(system, to_user=False)
    assert (place / "data-1" / "up.json").is_file()
    with pytest.raises(NothingRunningError):
        find_running()


def test_of_several_systems_a_command_says_which_one_it_asks(place, capsys):
    """`sluice drain` on the wrong one of two would evict pods of the other."""
    older, newer = running(place, pid=os.getppid(), port=1), running(place, port=2)
    announce(older)
    assert server_url(None) == older.nats_url
    assert capsys.readouterr().err == "", "of one there is nothing to say"
    announce(newer)
    os.utime(systems.pointers_dir() / f"{older.pid}.json", (1, 1))
    assert server_url(None) == newer.nats_url
    assert capsys.readouterr().err == (
        f"sluice: 2 systems are running; this is the newest, nats://127.0.0.1:2 ({newer.data_dir}). --server URL or "
        f"SLUICE_NATS_URL names another: nats://127.0.0.1:1 ({older.data_dir})\n"
    )
    assert server_url("nats://127.0.0.1:1") == "nats://127.0.0.1:1"
    assert capsys.readouterr().err == "", "who has named one knows"
    assert systems.running_at("nats://127.0.0.1:1") == older
    assert systems.running_at("nats://127.0.0.1:3") is None


@pytest.mark.parametrize("address", ["jaeger/{trace_id}", "https://jaeger.example/trace", "javascript:{trace_id}"])
def test_an_address_that_is_none_is_refused_with_one_that_would_be(monkeypatch, address):
    monkeypatch.setenv("SLUICE_CONSOLE_TRACE_VIEWER", address)
    with pytest.raises(BusError, match=r"trace_viewer = .*: must be an http or https address with \{trace_id\}"):
        settings_of_console()
    monkeypatch.setenv("SLUICE_CONSOLE_TRACE_VIEWER", "https://jaeger.example/trace/{trace_id}")
    assert settings_of_console().trace_viewer == "https://jaeger.example/trace/{trace_id}"
