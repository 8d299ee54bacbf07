"""What runs the Dockerfiles' steps, each called by deploy/docker/build.sh: buildah or Docker."""

import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from cluster.images import pip_settings
from cluster.images.archive import Image, read_archive
from cluster.images.base import SETTINGS
from cluster.images.commands import CONTAINED, run
from cluster.images.errors import ImageError, NoEngineError
from cluster.images.layers import Layer

ROOT = Path(__file__).resolve().parents[3]
BUILD_S = 1800
"""Of one image, packages fetched over a slow line included."""
_QUICK_S, _COPY_S = 60, 300
_LABEL = "io.buildah.version"
"""What buildah adds to the Dockerfile's labels; not kept, so that an update of it changes no image."""
_BUILDAH_FLAGS = "--layers --pull-never"
_OURS = ("TAG", "BUILD_FLAGS", "BASE_IMAGE", "REVISION", "SOURCE", "ENGINE", "PIP_INDEX_URL", "PIP_TRUSTED_HOST")
"""Settings of build.sh that are kept apart from a person's environment."""


class Engine(ABC):
    """`folder` is kept between runs, `work` is this run's."""

    name = ""
    contained: tuple[str, ...] = CONTAINED

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        self.base = ""

    @abstractmethod
    def prepare(self, base: Layer, name: str) -> None:
        """Make the base image, unless the engine has it."""

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """What build.sh and the engine find in their environment."""

    @abstractmethod
    def exported(self, names: Sequence[str]) -> list[Image]:
        """Images that were built, by the names that build.sh gave them."""

    def build(self, service: str, nats_server: Path) -> str:
        """Build one image by build.sh; returns what was written. Raises ImageError."""
        mine = {name: value for name, value in os.environ.items() if name not in _OURS}
        env = {**mine, "BASE_IMAGE": self.base, "NATS_SERVER": str(nats_server), **self.settings()}
        return run([*self.contained, "sh", ROOT / "deploy" / "docker" / "build.sh", service], limit_s=BUILD_S, env=env)

    @abstractmethod
    def sweep(self) -> None:
        """Remove what only earlier sources needed."""

    def volumes(self) -> str:
        """Flags that bring pip's configuration of this machine into each step, and into no image."""
        pairs = pip_settings.mounted(pip_settings.ask_pip(), self.work)
        if any(re.search(r"[\s:]", path) for pair in pairs for path in pair):
            raise ImageError(
                f"{pairs} are mounted in builds, whose paths hold no blank and no colon: set TMPDIR to such a folder"
            )
        return " ".join(f"--volume {source}:{target}:ro" for source, target in pairs)


class Buildah(Engine):
    """Buildah as root, with a storage of its own and without a runtime: steps run in a chroot."""

    name = "buildah"

    def __init__(self, folder: Path, work: Path) -> None:
        super().__init__(folder, work)
        folder.mkdir(parents=True, exist_ok=True)
        driver = "overlay" if _overlay_works(work) else "vfs"
        places = f'graphroot = "{folder / driver}"\nrunroot = "{work / "run"}"'
        configuration = work / "storage.conf"
        configuration.write_text(f'[storage]\ndriver = "{driver}"\n{places}\n')
        self.env = {"CONTAINERS_STORAGE_CONF": str(configuration), "BUILDAH_ISOLATION": "chroot"}
        self.bases = ("", "")
        self.seen = ""

    def prepare(self, base: Layer, name: str) -> None:
        """A second name says which base it is."""
        exact = f"{name.rpartition(':')[0]}:{base.digest[:16]}"
        self._run("rm", "--all")  # of a run that was killed
        try:
            self._run("inspect", "--type", "image", "--format", "{{.FromImageID}}", exact)
        except ImageError:
            container = self._run("from", "scratch").split()[-1]
            self._run("add", "--quiet", container, str(base.path), "/", limit_s=_COPY_S)
            self._run("config", *(f"--env={variable}" for variable in SETTINGS["Env"]), container)
            self._run("commit", "--quiet", "--rm", container, exact, limit_s=_COPY_S)
        self._run("tag", exact, name)
        self.base, self.bases = name, (name, exact)

    def settings(self) -> dict[str, str]:
        """Each step is kept, and nothing is looked for in a registry."""
        return {"ENGINE": "buildah", "BUILD_FLAGS": f"{_BUILDAH_FLAGS} {self.volumes()}", **self.env}

    def build(self, service: str, nats_server: Path) -> str:
        """What it writes is kept, for `sweep`."""
        written = super().build(service, nats_server)
        self.seen += written
        return written

    def exported(self, names: Sequence[str]) -> list[Image]:
        """One after another: buildah puts one image into an archive."""
        layers = self.work / "layers"
        layers.mkdir(exist_ok=True)
        images = []
        for name in names:
            archive = self.work / "image.tar"
            self._run("push", "--quiet", f"localhost/{name}", f"docker-archive:{archive}:{name}", limit_s=_COPY_S)
            # The one image is in it once for each of its names.
            image = read_archive(archive, layers)[0]
            labels = {key: value for key, value in (image.settings.get("Labels") or {}).items() if key != _LABEL}
            images.append(Image(name, {**image.settings, "Labels": labels}, image.layers))
            archive.unlink()
        return images

    def sweep(self) -> None:
        """Remove images without a name that no step of this run made or used: buildah writes their ids."""
        named = self._run("images", "--format", "{{.Name}}:{{.Tag}}").split()
        old = [each for each in named if each.startswith(f"{self.base.rpartition(':')[0]}:") and each not in self.bases]
        if old:
            self._run("rmi", *old)
        used = re.findall(r"^--> (?:Using cache )?([0-9a-f]{11,64})$", self.seen, re.MULTILINE)
        listed = self._run("images", "--all", "--quiet", "--no-trunc", "--filter", "dangling=true").split()
        ids = [each.removeprefix("sha256:") for each in listed]
        stale = [each for each in ids if not any(each.startswith(one) for one in used)]
        if stale:
            self._run("rmi", "--force", *stale, limit_s=_COPY_S)

    def _run(self, *words: str, limit_s: float = _QUICK_S) -> str:
        return run([*CONTAINED, "buildah", *words], limit_s=limit_s, env={**os.environ, **self.env})


class Docker(Engine):
    """A Docker engine that answers. It keeps its own cache, and `docker system prune` empties it."""

    name = "docker"
    contained = ()

    def prepare(self, base: Layer, name: str) -> None:
        """A second name says which base it is."""
        exact = f"{name.rpartition(':')[0]}:{base.digest[:16]}"
        try:
            run(["docker", "image", "inspect", exact], limit_s=_QUICK_S)
        except ImageError:
            changes = [word for variable in SETTINGS["Env"] for word in ("--change", f"ENV {variable}")]
            run(["docker", "import", *changes, base.path, exact], limit_s=_COPY_S)
        run(["docker", "tag", exact, name], limit_s=_QUICK_S)
        self.base = name

    def settings(self) -> dict[str, str]:
        """Its builder mounts nothing, so of pip's settings it gets the two that the Dockerfile takes."""
        pip = pip_settings.ask_pip()
        names = {"index-url": "PIP_INDEX_URL", "trusted-host": "PIP_TRUSTED_HOST"}
        return {"ENGINE": "docker", **{names[key]: value for key, value in pip.items() if key in names}}

    def exported(self, names: Sequence[str]) -> list[Image]:
        """All in one archive of the engine's."""
        archive, layers = self.work / "images.tar", self.work / "layers"
        layers.mkdir(exist_ok=True)
        run(["docker", "save", "--output", archive, *names], limit_s=_COPY_S)
        images = {image.name: image for image in read_archive(archive, layers)}
        archive.unlink()
        return [images[name] for name in names]

    def sweep(self) -> None: ...


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Buildah, Docker)}


def engine_of(asked: str) -> type[Engine]:
    """The engine for an argument of the command line; `auto` takes the first that works, or raises NoEngineError."""
    if asked == "auto":
        problems = {name: _missing(name) for name in ENGINES}
        if found := next((engine for name, engine in ENGINES.items() if not problems[name]), None):
            return found
        raise NoEngineError("; ".join(f"engine {name} cannot be used: {why}" for name, why in problems.items()))
    if asked not in ENGINES:
        raise ImageError(f"engine {asked!r} is not known (auto, {', '.join(ENGINES)})")
    if missing := _missing(asked):
        raise ImageError(f"engine {asked} cannot be used: {missing}")
    return ENGINES[asked]


def _missing(name: str) -> str:
    if name == "docker":
        if shutil.which("docker") is None:
            return "there is no docker on PATH"
        try:
            run(["docker", "version", "--format", "{{.Server.Version}}"], limit_s=_QUICK_S)
        except ImageError:
            return "no Docker engine answers"
        return ""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [program for program in ("unshare", "setpriv", "buildah") if shutil.which(program) is None]
    packages = ["buildah" if program == "buildah" else "util-linux" for program in missing]
    return f"missing on PATH: {', '.join(missing)} (apt-get install {' '.join(packages)})" if missing else ""


def _overlay_works(work: Path) -> bool:
    """Whether overlay file systems can be mounted where the storage is; tried in a namespace of its own."""
    for name in ("lower", "upper", "inner", "merged"):
        (work / name).mkdir()
    options = "lowerdir=lower,upperdir=upper,workdir=inner"
    words = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, "merged"]
    return subprocess.run(words, cwd=work, capture_output=True, timeout=_QUICK_S, check=False).returncode == 0
