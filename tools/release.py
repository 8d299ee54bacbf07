"""
Makes a release: `make release VERSION=1.2.3 REGISTRY=registry.example/gpu`.

It writes the version into what names it, closes the changelog's section "Unreleased", writes deploy/kubernetes, and
fills out/release/VERSION: the chart with that registry, the changelog's section, the names of the images, which
deploy/docker/build.sh builds, SBOMs where there are any, and SHA256SUMS. What remains is printed: commit, tag, push.
"""

import argparse
import datetime as dt
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import chart

ROOT = chart.ROOT
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*")
SERVICES = ("allocator", "console", "inventory", "node-agent", "pod-watcher")
OPEN = "## Unreleased\n"
BUILD_S = 3600


class ReleaseError(Exception):
    """Says what is wrong, and what would be right."""


def checked(version: str, registry: str, current: str, changelog: str) -> None:
    """Raises ReleaseError."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION is {version!r}: give three numbers, such as VERSION=1.2.3")
    numbers = [tuple(map(int, each.split("."))) for each in (version, current)]
    if numbers[0] < numbers[1]:
        raise ReleaseError(f"VERSION is {version}, below {current} of pyproject.toml: give a later one")
    if not REGISTRY.fullmatch(registry):
        raise ReleaseError(f"REGISTRY is {registry!r}: give HOST/PATH without a scheme, such as registry.example/gpu")
    if not notes(changelog, version):
        raise ReleaseError(f'CHANGELOG.md: neither "Unreleased" nor {version} says what is new: write it there')


def notes(changelog: str, version: str) -> str:
    """The section of the version, or the open one."""
    for heading in (rf"## {re.escape(version)}\b[^\n]*\n", re.escape(OPEN)):
        found = re.search(rf"^{heading}(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
        if found and found[1].strip():
            return found[1].strip() + "\n"
    return ""


def closed(changelog: str, version: str, today: dt.date) -> str:
    """The changelog with the open section under the version, and an empty open one."""
    if re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE):
        return changelog
    return changelog.replace(OPEN, f"{OPEN}\n## {version} - {today.isoformat()}\n", 1)


def make(version: str, registry: str) -> Path:
    """The folder with everything. Raises ReleaseError, NoHelmError, ChartError, CalledProcessError."""
    project, changelog = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    current = re.search(r'^version = "(.*)"$', project.read_text(encoding="utf-8"), re.MULTILINE)
    assert current is not None
    checked(version, registry, current[1], text)
    chart.helm(build=True)  # before anything is changed
    project.write_text(project.read_text(encoding="utf-8").replace(current[0], f'version = "{version}"', 1))
    changelog.write_text(closed(text, version, dt.datetime.now(dt.UTC).date()), encoding="utf-8")
    for tool in ("version.py", "manifests.py", "docs.py"):
        subprocess.run([sys.executable, ROOT / "tools" / tool], check=True, timeout=600)
    out = ROOT / "out/release" / version
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.rmtree(ROOT / "out/sbom", ignore_errors=True)
    (out / "notes.md").write_text(notes(text, version), encoding="utf-8")
    package(out, registry)
    environment = {**os.environ, "TAG": version, "REGISTRY": registry}
    subprocess.run(["sh", "deploy/docker/build.sh", *SERVICES], cwd=ROOT, env=environment, check=True, timeout=BUILD_S)
    images = "".join(f"{registry}/sluice-{name}:{version}\n" for name in SERVICES)
    (out / "images.txt").write_text(images, encoding="utf-8")
    for sbom in sorted((ROOT / "out/sbom").glob("*.json")):
        shutil.copy(sbom, out)
    sums(out)
    return out


def package(out: Path, registry: str) -> None:
    """The chart with that registry as its default; the broker's and the trace viewer's stay where they are."""
    copy = out / "sluice"
    shutil.copytree(chart.CHART, copy)
    values = copy / "values.yaml"
    text = values.read_text(encoding="utf-8")
    text = text.replace('  registry: ""\n', f"  registry: {registry}\n", 1)
    for name in ("nats: {name: nats,", "jaeger: {name: jaegertracing/jaeger,"):
        assert name in text
        text = text.replace(name, f'{name} registry: "",', 1)
    values.write_text(text, encoding="utf-8")
    chart.run("package", str(copy), "--destination", str(out))
    shutil.rmtree(copy)


def sums(folder: Path) -> None:
    """SHA256SUMS of every file, as sha256sum reads it."""
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> int:
    """Make it, and say what remains. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("version")
    parser.add_argument("registry")
    asked = parser.parse_args()
    try:
        out = make(asked.version, asked.registry)
    except (ReleaseError, chart.NoHelmError, chart.ChartError, subprocess.SubprocessError, OSError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    engine = os.environ.get("ENGINE", "docker")
    print(f"{out.relative_to(ROOT)} is ready. What remains:")
    print(f"  git commit -am 'Release {asked.version}' && git tag v{asked.version}")
    print(f"  xargs -n1 {engine} push < {out.relative_to(ROOT)}/images.txt")
    print(f"  helm push {out.relative_to(ROOT)}/sluice-{asked.version}.tgz oci://{asked.registry}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
