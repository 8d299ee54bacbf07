"""
Builds Kubernetes, etcd, containerd and the rest from Go modules, each pinned by a go.mod and go.sum in ../go.

A build is kept in the cache under a key of its inputs, so that a second run costs nothing.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.cache import cache_folder, digest_of, locked

GO = Path(__file__).parent.parent / "go"
BUILD_S = 3600.0
"""The longest that one module may take; a Kubernetes takes some 12 CPU minutes."""
VERSION = "k8s.io/component-base/version"
VERSIONS = {"1.34": "v1.34.4", "1.37": "v1.37.2"}
"""Minor version -> what its go.mod pins: the oldest that has DRA as GA, and the newest."""
NEWEST = max(VERSIONS, key=lambda minor: int(minor.split(".")[1]))


class BuildError(RuntimeError):
    """Says what is missing, or what the compiler said."""


@dataclass(frozen=True, slots=True)
class Module:
    """
    One folder of ../go: its `tool` lines become executables, or its own main package does.

    executable: the name of a single one, where the package's path does not say it.
    """

    folder: str
    version: str = ""
    package: str = "tool"
    executable: str = ""

    @property
    def path(self) -> Path:
        """Where its go.mod lies."""
        return GO / self.folder

    def key(self, toolchain: str) -> str:
        """Of everything that its executables depend on."""
        sources = sorted(path for path in self.path.iterdir() if path.suffix in (".mod", ".sum", ".go"))
        return digest_of([toolchain, repr(self), *(path.read_bytes() for path in sources)])[:16]


def modules(minor: str) -> list[Module]:
    """
    What a cluster of this minor version needs.

    Raises BuildError for a version without a folder.
    """
    if minor not in VERSIONS:
        raise BuildError(f"Kubernetes {minor!r} has no pinned module: one of {', '.join(VERSIONS)}")
    return [
        Module(f"kubernetes-{minor}", version=VERSIONS[minor]),
        Module("etcd", executable="etcd"),
        Module("containerd"),
        Module("cni"),
        Module("coredns", package=".", executable="coredns"),
        Module("pause", package=".", executable="pause"),
    ]


@dataclass(frozen=True, slots=True)
class Built:
    """Where the executables of one module lie, and how long their build took: 0 where it was cached."""

    module: Module
    folder: Path
    seconds: float


def build(module: Module, *, go: str | None = None) -> Built:
    """Build, or find in the cache. Raises BuildError."""
    go = go or shutil.which("go")
    if go is None:
        raise BuildError("Go is not on PATH: https://go.dev/doc/install")
    toolchain = subprocess.run(
        [go, "env", "GOVERSION"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    folder = cache_folder() / "bin" / f"{module.folder}-{module.key(toolchain)}"
    with locked(folder.with_suffix(".lock"), wait_s=BUILD_S):
        if folder.is_dir():
            return Built(module, folder, 0.0)
        return _built(module, go, folder)


def build_all(minor: str) -> dict[str, Path]:
    """Executable -> file, for a cluster of this minor version; says on stderr what was built and for how long."""
    found: dict[str, Path] = {}
    for module in modules(minor):
        built = build(module)
        if built.seconds:
            print(f"built {module.folder} {module.version} in {built.seconds:.0f} s", file=sys.stderr, flush=True)
        found.update({path.name: path for path in built.folder.iterdir()})
    return found


def _built(module: Module, go: str, folder: Path) -> Built:
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    started = time.monotonic()
    try:
        ended = subprocess.run(
            [
                go,
                "build",
                "-trimpath",
                "-ldflags",
                _ldflags(module),
                "-o",
                f"{fresh}/{module.executable}",
                module.package,
            ],
            cwd=module.path,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        if ended.returncode != 0:
            raise BuildError(f"go build of {module.folder} ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
        fresh.rename(folder)
    except subprocess.TimeoutExpired:
        raise BuildError(f"go build of {module.folder} took longer than {BUILD_S:.0f} s") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Built(module, folder, time.monotonic() - started)


def _ldflags(module: Module) -> str:
    if not module.version:
        return "-s -w"
    major, minor, _ = module.version.removeprefix("v").split(".")
    values = {"gitVersion": module.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {VERSION}.{name}={value}" for name, value in values.items())])
