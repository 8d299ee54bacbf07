"""What is a node's own is taken out of what is there of all nodes, whenever it comes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_check import DEPLOY
from factories.gpus.mps import until

PROGRAM = DEPLOY / "docker" / "own-credentials"


@pytest.fixture
def taking(tmp_path: Path) -> Iterator[Path]:
    """A folder for all nodes, and `own-credentials` that takes what is `gpu-9`'s."""
    (tmp_path / "all").mkdir()
    program = [PROGRAM, "gpu-9", tmp_path / "all", tmp_path / "own"]
    said = (tmp_path / "said").open("w")
    with said, subprocess.Popen(program, env={**os.environ, "LOOK_S": "0.05"}, stdout=said, stderr=said) as process:
        yield tmp_path
        process.terminate()
        assert process.wait(10) == 0


def test_a_node_that_comes_before_its_password_gets_it_when_it_is_there(taking: Path):
    """Its GPUs would serve no pod until its agent's pod is deleted by hand."""
    until(lambda: "run deploy/kubernetes/credentials.py" in (taking / "said").read_text(), "it says what is missing")
    (taking / "all" / "gpu-10").write_text("another's")
    (taking / "all" / "gpu-9").write_text("first")
    until(lambda: (taking / "own").exists() and (taking / "own").read_text() == "first", "it is taken")
    assert (taking / "own").stat().st_mode & 0o077 == 0


def test_a_password_that_is_renewed_is_taken_without_a_restart(taking: Path):
    """The agent would show an old certificate until it is refused."""
    (taking / "all" / "gpu-9").write_text("first")
    (taking / "all" / "gpu-9").chmod(0o400)
    until((taking / "own").exists, "it is taken")
    (taking / "all" / "new").write_text("second")
    (taking / "all" / "new").rename(taking / "all" / "gpu-9")
    until(lambda: (taking / "own").read_text() == "second", "the new one is taken")
