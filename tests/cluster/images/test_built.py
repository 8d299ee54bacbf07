"""All images, really built, and imported by containerd. Minutes, so `exhaustive`."""

import os
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.cache import cache_folder
from cluster.images.base import kept_base, missing_for_base, this_suite
from cluster.images.build import ROOT, build, image_names, nats_server
from cluster.images.engines import engine_of
from cluster.images.errors import ImageError
from cluster.images.small import busybox

BUILD_S, START_S, RUN_S, IMPORT_S = 3600, 30, 120, 600
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def _why_not() -> str:
    """Why images cannot be built here; empty when they can."""
    try:
        engine_of("auto")
        kept = kept_base(cache_folder() / "images", this_suite())
        missing = [] if kept.exists() and os.geteuid() == 0 else missing_for_base()
        busybox()
        nats_server()
    except ImageError as error:
        return str(error)
    return "; ".join(missing)


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(2 * BUILD_S),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[list[str]]:
    """A containerd of our own; gives the first arguments of `ctr`."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    for program in ("containerd", "ctr", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on PATH: apt-get install containerd runc")
    address = tmp_path / "c.sock"
    (tmp_path / "config.toml").write_text(
        f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{address}"\n[ttrpc]\naddress = "{tmp_path}/t.sock"\n'
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["containerd", "--config", tmp_path / "config.toml"], stdout=log, stderr=log)
    words = ["ctr", "--address", str(address), "--namespace", "k8s.io"]
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run([*words, "version"], capture_output=True, timeout=START_S, check=False).returncode:
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "containerd does not answer"
        yield words
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(), "a mount stays"


def test_containerd_imports_and_runs_each_image(runtime):
    """Pods would wait in ErrImageNeverPull, or end at once."""
    built = build()
    subprocess.run([*runtime, "images", "import", built.path], check=True, capture_output=True, timeout=IMPORT_S)

    def run(image: str, *words: str) -> str:
        name = f"try-{time.monotonic_ns()}"
        done = subprocess.run(
            [*runtime, "run", "--rm", image, name, *words], capture_output=True, text=True, timeout=RUN_S, check=False
        )
        return done.stdout + done.stderr

    known = subprocess.run([*runtime, "images", "ls", "-q"], capture_output=True, text=True, timeout=RUN_S, check=True)
    names = {}
    for name in image_names():
        (names[name],) = [known_as for known_as in known.stdout.split() if known_as.endswith(name)]
        assert known_as_is_whole(names[name], name)
    for service in ("allocator", "inventory", "node-agent", "pod-watcher"):
        image = names[f"sluice-{service}:{VERSION}"]
        assert run(image, "/opt/sluice/bin/run", "--version") == f"sluice-{service} {VERSION}\n"
    assert run(names[f"sluice-console:{VERSION}"], "/opt/sluice/bin/run", "--version") == f"{VERSION}\n"
    assert run(names["localhost/sluice-test:1"], "sh", "-c", "id -u && ls -d /tmp") == "0\n/tmp\n"


def known_as_is_whole(known: str, name: str) -> bool:
    """Whether a runtime's name for an image is the one that a pod's `image: NAME` means there."""
    return known == name or known.endswith(f"/library/{name}")
