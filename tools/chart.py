"""The Helm chart, rendered without a cluster."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy/helm/sluice"
HELM_S = 120
NEWEST = "1.37.0"
"""The Kubernetes that is rendered for."""
Document = dict[str, Any]


class NoHelmError(Exception):
    """There is no Helm to render with: says how to get it."""


class ChartError(Exception):
    """Helm refuses. Its message."""


def helm(*, build: bool = False) -> str:
    """
    A helm: HELM, the one on PATH, or the one of tests/cluster/go/helm, which is built where `build`.

    Raises NoHelmError.
    """
    found = os.environ.get("HELM") or shutil.which("helm")
    if found:
        return found
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from cluster.harness.binaries import EXTRAS, BuildError, build_extra, kept  # noqa: PLC0415 - of the tests
    finally:
        sys.path.remove(str(ROOT / "tests"))
    try:
        return str(build_extra("helm").executables["helm"] if build else kept(EXTRAS["helm"]) / "helm")
    except BuildError as error:
        raise NoHelmError(f"there is no helm on PATH, and none was built: {error}") from error


def template(
    values: Mapping[str, Any], *, namespace: str = "sluice-system", version: str = NEWEST, options: tuple[str, ...] = ()
) -> str:
    """What Helm would install with these values. Raises NoHelmError, ChartError."""
    command = ("template", "sluice", str(CHART), f"--namespace={namespace}", f"--kube-version={version}")
    return run(*command, "--values=-", *options, given=json.dumps(values))


def run(*words: str, given: str = "") -> str:
    """What Helm prints. Raises NoHelmError, ChartError."""
    done = subprocess.run([helm(), *words], input=given, capture_output=True, text=True, timeout=HELM_S, check=False)
    if done.returncode:
        raise ChartError((done.stderr.strip() or done.stdout.strip())[-2000:])
    return done.stdout


def documents(text: str) -> list[Document]:
    """The documents of a YAML text."""
    # libyaml's own parser where it is there: ten times as fast, and the same documents
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document is not None]
