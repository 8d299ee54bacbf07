"""Images of ours, built on a Docker engine from SLUICE_TEST_BASE_IMAGE (Python 3.11 or newer, with venv)."""

import os
import shutil
import subprocess
from pathlib import Path

from sluice.runtime.nats_server.server_config import server_binary

ROOT = Path(__file__).resolve().parents[2]
BASE = os.environ.get("SLUICE_TEST_BASE_IMAGE", "")
REVISION = "0123abcd"
BUILD_S, RUN_S = 900, 60


def docker(*words: str, limit_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=limit_s, check=False)


def why_not() -> str:
    """Why no image can be built here; empty when one can."""
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    if docker("version", "--format", "{{.Server.Version}}").returncode != 0:
        return "no Docker engine answers"
    if not BASE:
        return "SLUICE_TEST_BASE_IMAGE names no image with Python"
    return "" if docker("image", "inspect", BASE).returncode == 0 else f"the engine has no image {BASE}"


def build_image(name: str, tag: str, flags: str = "", root: Path = ROOT) -> str:
    """Build one image by the program with which a user builds them; returns its name."""
    done = subprocess.run(
        ["sh", root / "deploy" / "docker" / "build.sh", name],
        env={
            **os.environ,
            "TAG": tag,
            "BASE_IMAGE": BASE,
            "BUILD_FLAGS": f"--network host {flags}",
            "REVISION": REVISION,
            "NATS_SERVER": str(server_binary()),
        },
        capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return f"sluice-{name}:{tag}"


def remove_image(image: str) -> None:
    docker("image", "rm", "--force", image)
