"""
The images that are deployed: each is built, holds one service and nothing else, and runs as nobody on a read-only root.

Needs a Docker engine, and SLUICE_TEST_BASE_IMAGE naming an image on it with Python 3.11 or newer and venv; without them
these tests skip. Packages come from where pip on this machine is told to get them.
"""

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = os.environ.get("SLUICE_TEST_BASE_IMAGE", "")
CONTEXT = ("pyproject.toml", "README.md", "LICENSE", "requirements", "libs", "services", "examples", "deploy/docker")
BUILD_S, RUN_S = 900, 60
FORBIDDEN = {
    "allocator": ("kubernetes", "pynvml", "watchfiles", "cyclopts", "rich", "sluice_node_agent", "sluice_pod_watcher"),
    "inventory": ("kubernetes", "pynvml", "watchfiles", "yaml", "cyclopts", "rich", "sluice_allocator"),
    "node-agent": ("kubernetes", "watchfiles", "yaml", "cyclopts", "rich", "sluice_pod_watcher", "sluice_allocator"),
    "pod-watcher": ("pynvml", "cyclopts", "rich", "sluice_node_agent", "sluice_allocator", "sluice_inventory"),
}
"""Modules that are none of a service's business."""
TOOLS = ("pip", "gcc", "cc", "ld", "make")


def docker(*words: str, limit_s: float = RUN_S, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    """One command of Docker's."""
    done = subprocess.run(["docker", *words], input=given, capture_output=True, timeout=limit_s, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def why_not() -> str:
    """Why no image can be built here; empty when one can."""
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    if docker("version", "--format", "{{.Server.Version}}").returncode != 0:
        return "no Docker engine answers"
    if not BASE:
        return "SLUICE_TEST_BASE_IMAGE names no image with Python"
    return "" if docker("image", "inspect", BASE).returncode == 0 else f"the engine has no image {BASE}"


WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(BUILD_S + 120)]


def context() -> bytes:
    """What the Dockerfile copies, as a stream: every builder takes that, and none reads the rest of the repository."""
    stream = io.BytesIO()
    # Docker looks at the first kilobyte only, and does not know the extended headers of the default format.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in CONTEXT:
            archive.add(ROOT / name, name, filter=lambda each: None if "__pycache__" in each.name else each)
    return stream.getvalue()


@pytest.fixture(scope="module", params=FORBIDDEN)
def image(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Each service with its image; removed again."""
    service = str(request.param)
    name = f"sluice-test-{service}:{os.getpid()}"
    mirror = os.environ.get("PIP_INDEX_URL")
    arguments = [f"BASE_IMAGE={BASE}", f"SERVICE={service}", *([f"PIP_INDEX_URL={mirror}"] if mirror else [])]
    words = [word for argument in arguments for word in ("--build-arg", argument)]
    built = docker(
        "build", "--network", "host", "--force-rm", "-t", name, "-f", "deploy/docker/Dockerfile", *words, "-",
        limit_s=BUILD_S, given=context(),
    )  # fmt: skip
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    yield service, name
    docker("image", "rm", "--force", name)


def run(name: str, *words: str, entry: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an image as the manifests do: read-only, no capabilities, no network, and gone afterwards."""
    hardened = ["--rm", "--read-only", "--network", "none", "--cap-drop", "ALL", "--tmpfs", "/tmp"]
    variables = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    return docker("run", *hardened, *variables, *(["--entrypoint", entry] if entry else []), name, *words)


def test_an_image_holds_its_service_and_nobody_elses_libraries(image):
    """What is not there needs no patch and cannot be misused."""
    service, name = image
    program = (
        "import importlib.util, json, sys; "
        "print(json.dumps([each for each in sys.argv[1:] if importlib.util.find_spec(each)]))"
    )
    own = f"sluice_{service.replace('-', '_')}"
    done = run(name, "-c", program, own, "sluice", *FORBIDDEN[service], entry="/opt/sluice/bin/python")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [own, "sluice"]


def test_an_image_brings_no_tools_and_is_nobody(image):
    """A compiler or an installer in an image is half of a break-in."""
    service, name = image
    script = 'for tool in "$@"; do command -v "$tool"; done; id -u; touch /x 2>/dev/null && echo writable; true'
    done = run(name, "-c", script, "sh", *TOOLS, entry="/bin/sh")

    assert done.stdout.split() == ["65532"], (service, done.stdout, done.stderr)


def test_a_service_starts_as_it_is_deployed(image):
    """Its first sentence is about its settings: everything before that works without root and without a disk."""
    service, name = image
    done = run(name, SLUICE_LOG_FORMAT="json", SLUICE_LOG_LEVEL="wrong")

    assert done.returncode == 1
    assert done.stderr.startswith(f"sluice-{service}: SLUICE_LOG_LEVEL is 'wrong'"), done.stderr
