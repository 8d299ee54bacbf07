"""Ctrl-C at any moment of a start: every program of ours ends as a shell expects it, without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
