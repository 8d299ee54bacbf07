"""
Builds Kubernetes, etcd, containerd and the rest from Go modules, each pinned by a go.mod and go.sum in ../go.

A build is kept in the cache under a key of its inputs, so that a second run costs nothing.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.cache import cache_folder, digest_of, locked

GO = Path(__file__).parent.parent / "go"
BUILD_S = 3600.0
"""The longest that one module may take; a Kubernetes takes some 12 CPU minutes."""
VERSION = "k8s.io/component-base/version"
VERSIONS = {"1.34": "v1.34.4", "1.37": "v1.37.2"}
"""Minor version -> what its go.mod pins: the oldest that has DRA as GA, and the newest."""
CONTROL_PLANE = " ".join(
    f"k8s.io/kubernetes/cmd/{each}"
    for each in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
)
NEWEST = max(VERSIONS, key=lambda minor: int(minor.split(".")[1]))


class BuildError(RuntimeError):
    """Says what is missing, or what the compiler said."""


class NotFetchedError(BuildError):
    """Sources of a pinned module cannot be had here: no network, or no proxy that has them."""


@dataclass(frozen=True, slots=True)
class Module:
    """
    One folder of ../go: its `tool` lines become executables, or its own main package does.

    package: one or several, by spaces. executable: the name of a single one, where the package's path does not say it.
    manifests: a required module, and
    folders of it with objects that a user applies: kept beside the executables.
    """

    folder: str
    version: str = ""
    package: str = "tool"
    executable: str = ""
    manifests: tuple[str, ...] = field(default=(), repr=False)

    @property
    def path(self) -> Path:
        """Where its go.mod lies."""
        return GO / self.folder

    def key(self, toolchain: str) -> str:
        """Of everything that its executables depend on."""
        sources = sorted(path for path in self.path.iterdir() if path.suffix in (".mod", ".sum", ".go"))
        kept = [*(path.read_bytes() for path in sources), *self.manifests]
        return digest_of([toolchain, repr(self), *kept])[:16]


EXTRAS = {
    "grafana": Module("grafana", package=".", executable="grafana"),
    "helm": Module("helm", executable="helm"),
    "jaeger": Module("jaeger", executable="jaeger"),
    "karpenter": Module(
        "karpenter", executable="karpenter", manifests=("sigs.k8s.io/karpenter", "pkg/apis/crds", "kwok/apis/crds")
    ),
    "kube-router": Module("kube-router", package=".", executable="kube-router"),
    "kueue": Module("kueue", executable="kueue", manifests=("sigs.k8s.io/kueue", "config")),
}
"""Name -> what only some suites run beside a cluster, and what is built only where it is asked for."""


def modules(minor: str, extras: Iterable[str] = (), *, runs_pods: bool = True) -> list[Module]:
    """
    What a cluster of this minor version needs, and these of EXTRAS; without machines that run pods a third less.

    Raises BuildError for a version without a folder, or an extra that there is not.
    """
    unknown = sorted(set(extras) - set(EXTRAS))
    if unknown:
        raise BuildError(f"no extra of the name {', '.join(map(repr, unknown))}: one of {', '.join(EXTRAS)}")
    if minor not in VERSIONS:
        raise BuildError(f"Kubernetes {minor!r} has no pinned module: one of {', '.join(VERSIONS)}")
    etcd = Module("etcd", executable="etcd")
    if not runs_pods:
        return [Module(f"kubernetes-{minor}", version=VERSIONS[minor], package=CONTROL_PLANE), etcd]
    return [
        Module(f"kubernetes-{minor}", version=VERSIONS[minor]),
        etcd,
        Module("containerd"),
        Module("cni"),
        Module("coredns", package=".", executable="coredns"),
        Module("pause", package=".", executable="pause"),
        *(EXTRAS[name] for name in sorted(set(extras))),
    ]


@dataclass(frozen=True, slots=True)
class Built:
    """
    What one module has brought.

    folder: its executables, and `Module.manifests` below the name `manifests`. seconds, cpu_s: what the build took by
    clock and CPU, 0 where it was cached.
    """

    module: Module
    folder: Path
    seconds: float
    cpu_s: float

    @property
    def executables(self) -> dict[str, Path]:
        """Name -> file."""
        return {path.name: path for path in self.folder.iterdir() if path.is_file()}


def build(module: Module, *, go: str | None = None) -> Built:
    """Build, or find in the cache. Raises BuildError."""
    go = _program(go)
    folder = _folder(module, go)
    with locked(folder.with_suffix(".lock"), wait_s=BUILD_S):
        if folder.is_dir():
            return Built(module, folder, 0.0, 0.0)
        return _built(module, go, folder)


def kept(module: Module) -> Path:
    """The folder of a module that was built before. Raises BuildError."""
    folder = _folder(module, _program())
    if not folder.is_dir():
        raise BuildError(f"{module.folder} was not built: python tests/cluster build --extra {module.folder}")
    return folder


def _program(go: str | None = None) -> str:
    go = go or shutil.which("go")
    if go is None:
        raise BuildError("Go is not on PATH: https://go.dev/doc/install")
    return go


def _folder(module: Module, go: str) -> Path:
    toolchain = subprocess.run(
        [go, "env", "GOVERSION"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    return cache_folder() / "bin" / f"{module.folder}-{module.key(toolchain)}"


def _fetch(module: Module, go: str) -> None:
    """Have the sources of every package that is built. Raises NotFetchedError."""
    ended = subprocess.run(
        [go, "list", "-deps", *module.package.split()],
        cwd=module.path,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if ended.returncode != 0:
        raise NotFetchedError(f"the sources of {module.folder} cannot be fetched:\n{ended.stderr[-2000:]}")


def _built(module: Module, go: str, folder: Path) -> Built:
    _fetch(module, go)
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    started, used = time.monotonic(), _children_cpu_s()
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
                *module.package.split(),
            ],
            cwd=module.path,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        if ended.returncode != 0:
            raise BuildError(f"go build of {module.folder} ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
        for below in module.manifests[1:]:
            sources = _sources(module, module.manifests[0])
            shutil.copytree(sources / below, fresh / "manifests" / below, copy_function=shutil.copyfile)
        fresh.rename(folder)
    except subprocess.TimeoutExpired:
        raise BuildError(f"go build of {module.folder} took longer than {BUILD_S:.0f} s") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Built(module, folder, time.monotonic() - started, _children_cpu_s() - used)


def build_all(minor: str, extras: Iterable[str] = (), *, runs_pods: bool = True) -> dict[str, Path]:
    """Executable -> file, for a cluster of this minor version; says on stderr what was built and for how long."""
    found: dict[str, Path] = {}
    for module in modules(minor, extras, runs_pods=runs_pods):
        found.update(_build_aloud(module).executables)
    return found


def build_extra(name: str) -> Built:
    """One of EXTRAS, as `build_all` does."""
    return _build_aloud(EXTRAS[name])


def _build_aloud(module: Module) -> Built:
    built = build(module)
    if built.seconds:
        took = f"{built.seconds:.0f} s, {built.cpu_s:.0f} s of CPU"
        print(f"built {module.folder} {module.version} in {took}", file=sys.stderr, flush=True)
    return built


def _sources(module: Module, path: str) -> Path:
    """Where Go keeps the sources of a module that this one requires, as its go.sum pins them."""
    ended = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", path],
        cwd=module.path,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if ended.returncode != 0 or not ended.stdout.strip():
        raise BuildError(f"{module.folder} has no sources of {path}: {ended.stderr.strip() or 'not downloaded'}")
    return Path(ended.stdout.strip())


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}


def _children_cpu_s() -> float:
    """Of all that this process has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ldflags(module: Module) -> str:
    if not module.version:
        return "-s -w"
    major, minor, _ = module.version.removeprefix("v").split(".")
    values = {"gitVersion": module.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {VERSION}.{name}={value}" for name, value in values.items())])
