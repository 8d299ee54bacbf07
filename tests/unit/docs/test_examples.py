"""The examples are a user's first pods: their images exist, and they end well, with GPUs or simulated ones."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
IMAGE = "ubuntu:24.04"
"""An official image of Docker Hub with `sh` and glibc, which `nvidia-smi` needs. NVIDIA's runtime brings that."""
DEVICE = "MIG-7896fb44-b977-4761-9379-653f190fe21c"


def pods(example: Path) -> Iterator[Any]:
    for document in yaml.safe_load_all(example.read_text(encoding="utf-8")):
        yield document["spec"].get("template", document)


def ran(command: list[str], folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """A container's command in a container of these programs, in which time does not pass."""
    for name, script in {"sleep": "exit 0", **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "sh").symlink_to("/bin/sh")
    environment = {"PATH": str(folder), "NVIDIA_VISIBLE_DEVICES": DEVICE}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ends_well_and_shows_its_device(example: Path, tmp_path: Path) -> None:
    """`ErrImagePull` was the end of everybody's first pod."""
    for number, pod in enumerate(pods(example)):
        assert pod["spec"]["restartPolicy"] == "Never", "one that ends is started again, for ever"
        for container in pod["spec"]["containers"]:
            assert container["image"] == IMAGE
            ways = {"ticket": {}, "claim": {"ls": f"echo {DEVICE}"}, "real": {"nvidia-smi": f"echo {DEVICE}"}}
            for where, programs in ways.items():
                folder = tmp_path / f"{where}-{number}-{container['name']}"
                folder.mkdir()
                done = ran(container["command"], folder, **programs)
                assert (done.returncode, done.stdout.strip()) == (0, DEVICE), (where, done.stderr)
