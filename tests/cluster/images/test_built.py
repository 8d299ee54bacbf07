"""All images, really built: by buildah and by the assembler, and imported by containerd. Minutes, so `exhaustive`."""

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
from cluster.images.archive import Image, read_archive
from cluster.images.base import kept_base, missing_for_base, this_suite
from cluster.images.build import ROOT, build, image_names, nats_server
from cluster.images.engines import engine_of
from cluster.images.errors import ImageError
from cluster.images.layers import Entry, files_of
from cluster.images.small import busybox

BUILD_S, START_S, RUN_S, IMPORT_S = 3600, 30, 120, 600
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def _why_not(*engines: str) -> str:
    """Why images cannot be built here by these engines; empty when they can."""
    try:
        for engine in engines:
            engine_of(engine)
        kept = kept_base(cache_folder() / "images", this_suite())
        missing = [] if kept.exists() and os.geteuid() == 0 else missing_for_base()
        busybox()
        nats_server()
    except ImageError as error:
        return str(error)
    return "; ".join(missing)


def _needs(*engines: str) -> pytest.MarkDecorator:
    reason = _why_not(*engines)
    return pytest.mark.skipif(bool(reason), reason=reason)


pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(2 * BUILD_S)]


def _images(engine: str, folder: Path) -> dict[str, Image]:
    return {image.name: image for image in read_archive(build(engine).path, folder)}


@_needs("none", "buildah")
def test_images_without_an_engine_are_the_ones_of_an_engine(tmp_path):
    """What was tried on a machine without an engine would not be what is deployed."""
    made, built = _images("none", tmp_path), _images("buildah", tmp_path)
    assert sorted(made) == sorted(built) == sorted(image_names())
    for name in made:
        assert _settings(made[name]) == _settings(built[name]), name
        ours, theirs = (_files(each[name]) for each in (made, built))
        differing = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
        assert [(path, ours.get(path), theirs.get(path)) for path in differing[:5]] == [], name


def _files(image: Image) -> dict[str, Entry]:
    return files_of(layer.path for layer in image.layers)


def _settings(image: Image) -> dict[str, object]:
    return {key: value for key, value in image.settings.items() if value and key in {
        "Env", "Entrypoint", "Cmd", "User", "Labels", "WorkingDir",
    }}  # fmt: skip


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[list[str]]:
    """A containerd of our own; gives the first words of `ctr`."""
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


@_needs("auto")
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
