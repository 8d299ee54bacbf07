"""A failing seed can be replayed: the same seed gives the same run, in any process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SIMULATION = Path(__file__).resolve().parents[1]


def hashes(hash_seed: str) -> str:
    """The hashes of some seeds, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(SIMULATION), "--seeds", "12", "--from", "40", "--jobs", "1", "--hashes", "--quiet"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("seed "))


@pytest.mark.timeout(400)
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Two processes with different hash seeds write the same lines for the same seeds."""
    first = hashes("1")
    assert first.count("\n") >= 11
    assert first == hashes("2")
