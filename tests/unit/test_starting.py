"""Ctrl-C at any moment of a start: every program of ours ends as a shell expects it, without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from factories.processes import heeding_ctrl_c

PROGRAMS = (
    "sluice_console",
    "sluice_allocator",
    "sluice_inventory",
    "sluice_node_agent",
    "sluice_pod_watcher",
    "sluice_allocator.offline",
)
PROBE = """
import os, signal, sys
class Ctrl:
    def find_spec(self, name, path=None, target=None):
        if name == "{at}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Ctrl())
"""


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("at", ["pathlib", "asyncio", "msgspec", "sluice.contracts"])
def test_ctrl_c_while_a_program_starts_shows_no_traceback(tmp_path: Path, program: str, at: str) -> None:
    """The first tenths of a second are imports, and a person who has mistyped something presses Ctrl-C just then."""
    (tmp_path / "sitecustomize.py").write_text(PROBE.format(at=at))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    with heeding_ctrl_c():
        done = subprocess.run(
            [sys.executable, "-m", program, "--no-such-option"],
            env=environment | {"PYTHONPATH": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    if done.returncode != -signal.SIGINT:
        assert done.returncode != 0, "it was not interrupted: this program does not import that"


SERVICES = (
    "sluice_allocator.shell.app",
    "sluice_inventory.shell.app",
    "sluice_node_agent.shell.app",
    "sluice_pod_watcher.shell.folder.app",
)
NOT_FOR_SERVICES = ("aiohttp", "rich", "pygments", "cyclopts", "kubernetes", "opentelemetry.sdk", "cryptography")
NOT_FOR_A_COMMAND = ("asyncio", "nats", "grpc", "structlog", "google.protobuf", "msgspec", "sluice.contracts")


def loaded(*modules: str) -> set[str]:
    """Every module that a fresh interpreter has after importing these."""
    program = f"import sys, {', '.join(modules)}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("modules", "superfluous", "sign"),
    [
        pytest.param(SERVICES, NOT_FOR_SERVICES, "nats.aio.client", id="services"),
        pytest.param(("sluice_console.__main__",), NOT_FOR_A_COMMAND, "cyclopts", id="commands"),
    ],
)
def test_no_process_waits_for_libraries_that_are_not_used(modules, superfluous, sign):
    """Services start twice as fast as they would with all that is installed, commands four times."""
    found = loaded(*modules)
    assert sign in found
    assert not {name for name in found if name.startswith(superfluous)}


def test_a_library_that_was_left_out_can_still_be_used_by_others():
    """The webhook serves with aiohttp in a process whose NATS client was loaded without it."""
    found = loaded("sluice.runtime.nats.client", "sluice.runtime.logs", "aiohttp.web", "rich.console")
    assert {"aiohttp.web", "rich.console", "nats.aio.client", "structlog.dev"} <= found
