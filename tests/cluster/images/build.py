"""All images in one archive, kept under a key of all that went into them."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.cache import cache_folder, digest_of, digest_of_file, locked
from cluster.images.archive import Image, write_archive
from cluster.images.base import base_layer
from cluster.images.commands import run
from cluster.images.engines import ROOT, Engine, engine_of
from cluster.images.errors import ImageError
from cluster.images.layers import Layer
from cluster.images.small import TEST, busybox, busybox_image

SERVICES = ("allocator", "inventory", "node-agent", "pod-watcher", "console")
INPUTS = (
    "pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements/dev.txt", "libs", "services", "examples",
    "native", "deploy/docker", "tests/cluster/images",
)  # fmt: skip
KEPT_ARCHIVES = 2
"""The present one, and the one of another branch or engine."""
_WORK = "work-"
_WAIT_S = 2400
_ASK_S = 20


@dataclass(frozen=True)
class Built:
    """`path` is in the cache and read-only; `reused` when there was nothing to do."""

    path: Path
    engine: str
    reused: bool
    seconds: float


def nats_server() -> Path:
    """The broker's program. Raises ImageError where it is not installed."""
    program = Path(os.environ.get("NATS_SERVER") or ROOT / ".venv" / "bin" / "nats-server")
    if not program.exists():
        raise ImageError(f"there is no {program}: run `make setup`, or name the program in NATS_SERVER")
    return program.resolve()


def names(broker: Path) -> dict[str, str]:
    """The name that build.sh gives each image, by what it calls it."""
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    version = re.search(r"^nats-server: v(\S+)$", run([broker, "--version"], limit_s=_ASK_S), re.MULTILINE)
    if version is None:
        raise ImageError(f"{broker} --version does not say `nats-server: vVERSION`: name a nats-server in NATS_SERVER")
    return {
        **{service: f"sluice-{service}:{found[1]}" for service in SERVICES},
        "broker": f"sluice-broker:{version[1]}",
    }


def image_names() -> list[str]:
    """The names of all images in the archive."""
    return [*names(nats_server()).values(), TEST]


def build(engine: str = "auto", *, say: Callable[[str], None] = lambda _: None) -> Built:
    """Make the archive, or take the one that is kept. Raises ImageError."""
    begin = time.monotonic()
    folder = cache_folder() / "images"
    chosen = engine_of(engine)
    broker = nats_server()
    with locked(folder / "lock", wait_s=_WAIT_S):
        _remove_leftovers(folder)
        base, suite = base_layer(folder)
        out = folder / f"images-{chosen.name}-{key_of(broker, base)}.tar"
        reused = out.exists()
        if reused:
            os.utime(out)
        else:
            say(f"base: Debian {suite}, {base.size / 1e6:.0f} MB")
            with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder) as work:
                _make(chosen(folder / chosen.name, Path(work)), base, suite, out, say)
            out.chmod(0o444)
        _remove_old(folder)
    return Built(out, chosen.name, reused, time.monotonic() - begin)


def key_of(broker: Path, base: Layer) -> str:
    """What an archive is kept under: everything that its images are made of."""
    parts = []
    for path in sorted(_inputs()):
        parts += [str(path.relative_to(ROOT)), f"{path.stat().st_mode & 0o111:o}", path.read_bytes()]
    parts += [digest_of_file(broker), digest_of_file(busybox()), str(shutil.which("cc")), str(shutil.which("make"))]
    return digest_of([*parts, base.digest])[:24]


def place(built: Built, out: Path) -> None:
    """The archive at another path: a link where that can be, else a copy."""
    if out.exists() and out.samefile(built.path):
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    try:
        os.link(built.path, out)
    except OSError:
        shutil.copyfile(built.path, out)


def _make(engine: Engine, base: Layer, suite: str, out: Path, say: Callable[[str], None]) -> None:
    engine.prepare(base, f"localhost/sluice-base:{suite}")
    broker = nats_server()
    wanted = names(broker)
    for service in wanted:
        begin = time.monotonic()
        engine.build(service, broker)
        say(f"{service}: built in {time.monotonic() - begin:.0f} s")
    images = [*engine.exported(list(wanted.values())), busybox_image(engine.work)]
    write_archive(images, out)
    engine.sweep()
    for image in images:
        say(describe(image, base.digest))


def describe(image: Image, base: str) -> str:
    own = sum(layer.size for layer in image.layers if layer.digest != base)
    return f"{image.name}: {image.size / 1e6:.1f} MB" + (
        f", {own / 1e6:.1f} over the base" if own != image.size else ""
    )


def _inputs() -> Iterator[Path]:
    for name in INPUTS:
        top = ROOT / name
        for path in [top] if top.is_file() else top.rglob("*"):
            passing = "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)
            if path.is_file() and not passing and not (path.name.startswith("test_") and "images" in path.parts):
                yield path


def _remove_leftovers(folder: Path) -> None:
    """What a killed run left, of which no process is alive and nothing is mounted any more."""
    for pattern in (f"{_WORK}*", "*.partial"):
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _remove_old(folder: Path) -> None:
    archives = sorted(folder.glob("images-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[KEPT_ARCHIVES:]:
        path.unlink()
