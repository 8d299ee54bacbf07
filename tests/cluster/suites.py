"""
Runs every suite that needs a real Kubernetes on one cluster, and writes down what was run, on which versions.

The API server's part (`tests/kubernetes`) runs before Sluice is installed and again after it; `tests/cluster` between.
"""

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.harness import cgroups
from cluster.harness import cluster as clusters
from cluster.harness.binaries import EXTRAS, GO, VERSIONS, build_all
from cluster.harness.cluster import Cluster
from cluster.images.errors import NoEngineError
from cluster.product import IMAGES
from cluster.product import images as images_of_product

REPOSITORY = Path(__file__).parents[2]
RECORD = REPOSITORY / "docs/cluster-runs.json"
"""The last recorded run of each minor version: docs/install.md and README say what was tried from it."""
SUITE_S = 7200.0
"""The long list takes an hour on two cores that have nothing else to do."""
LAST = "tests/cluster/test_uninstalled.py"
ALL = ("tests/cluster", f"--ignore={LAST}")
FIRST = tuple(f"tests/cluster/test_{name}.py" for name in ("installed", "examples", "handing_over", "endings"))
"""What a user meets first: the installation, examples, devices in containers, every way in which a pod ends."""
PINNED = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "containerd": "github.com/containerd/containerd/v2",
    "cni": "github.com/containernetworking/plugins",
    "coredns": "github.com/coredns/coredns",
    "kube-router": "github.com/cloudnativelabs/kube-router/v2",
    "kueue": "sigs.k8s.io/kueue",
    "karpenter": "sigs.k8s.io/karpenter",
}
"""Folder of ../go -> the module whose version counts."""


@dataclass(slots=True)
class Outcome:
    """Of one call of pytest."""

    title: str
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def run(minor: str, *, product: Sequence[str], is_recorded: bool) -> int:
    """
    Exit status: 0 where everything that ran has passed. Without tests of the `product`, or an engine that builds its
    images, machines run no pods.
    """
    try:
        images = str(images_of_product()) if product else ""  # they take longer than a test may
    except NoEngineError as error:
        print(f"skipped: what needs images of Sluice: {error}", flush=True)
        product, images = (), ""
    is_long = product == ALL
    if is_long:
        build_all(minor, EXTRAS.keys() - {"jaeger"})  # `make test` looks at traces in it
    # The API server's tests play the nodes of a cluster that has none.
    with clusters.running("suites", minor=minor, workers=2, runs_pods=bool(product)) as cluster:
        # In the API server's network, where it reaches the webhooks that these tests serve on the loopback.
        near = ["nsenter", f"--target={cluster.control_plane.box.pid}", "--net"]
        api = {"SLUICE_TEST_KUBECONFIG": str(cluster.control_plane.kubeconfig)}
        outcomes = [_pytest("API server", ["tests/kubernetes"], api, near)]
        if product:
            named = {"SLUICE_CLUSTER_NAME": cluster.folder.name, "SLUICE_CLUSTER_KUBERNETES": minor, IMAGES: images}
            outcomes.append(_pytest("product", ["-m", "cluster", *product], named))
            if is_long:
                outcomes.append(_pytest("API server, Sluice installed", ["tests/kubernetes"], api, near))
            outcomes.append(_pytest("uninstall", ["-m", "cluster", LAST], named))
        record = _record(cluster, outcomes, PINNED if is_long else PINNED.keys() - EXTRAS.keys() if product else ())
    out = REPOSITORY / "out"
    out.mkdir(exist_ok=True)
    (out / f"cluster-run-{minor}.json").write_text(json.dumps(record, indent=2) + "\n")
    for outcome in outcomes:
        print(f"{outcome.title}: {outcome.passed} passed, {outcome.failed} failed in {outcome.seconds:.0f} s")
        for reason, count in sorted(outcome.skipped.items()):
            print(f"  {count} skipped: {reason}")
    is_good = not any(outcome.failed for outcome in outcomes) and all(outcome.passed for outcome in outcomes)
    if is_recorded and is_good:
        known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps({**known, minor: record}, indent=2, sort_keys=True) + "\n")
    return int(not is_good)


def _pytest(title: str, arguments: list[str], environment: Mapping[str, str], prefix: Sequence[str] = ()) -> Outcome:
    results = REPOSITORY / "out" / f"junit-{os.getpid()}.xml"
    results.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    print(f"== {title}", flush=True)
    try:
        subprocess.run(
            [*prefix, sys.executable, "-m", "pytest", f"--junitxml={results}", "--quiet", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            timeout=SUITE_S,
            check=False,
        )
        outcome = _read(title, results) if results.exists() else Outcome(title, failed=1)
    finally:
        results.unlink(missing_ok=True)
    outcome.seconds = time.monotonic() - started
    return outcome


def _read(title: str, results: Path) -> Outcome:
    outcome = Outcome(title)
    for case in ET.parse(results).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            reason = skipped.get("message", "")
            outcome.skipped[reason] = outcome.skipped.get(reason, 0) + 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
        else:
            outcome.passed += 1
    return outcome


def _record(cluster: Cluster, outcomes: list[Outcome], on_machines: Collection[str]) -> dict[str, Any]:
    """`on_machines`: what ran beside the control plane, of PINNED; nothing where no machine ran pods."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machines": len(cluster.nodes) if on_machines else 0,
        "versions": {
            "Kubernetes": VERSIONS[cluster.minor].removeprefix("v"),
            "etcd": _version("etcd", PINNED["etcd"]),
            **(_versions_of_machines(on_machines) if on_machines else {}),
        },
        "suites": {
            outcome.title: {"passed": outcome.passed, "skipped": sum(outcome.skipped.values())} for outcome in outcomes
        },
    }


def _versions_of_machines(built: Collection[str]) -> dict[str, str]:
    runc = subprocess.run(["runc", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout.split()
    return {
        **{folder: _version(folder, PINNED[folder]) for folder in built},
        "runc": runc[2],
        "Linux": platform.release().split("-")[0],
        "cgroup": "v2" if cgroups.is_unified() else "v1",
    }


def _version(folder: str, module: str) -> str:
    for line in (GO / folder / "go.mod").read_text().splitlines():
        words = line.replace("require ", "").split()
        if words[:1] == [module] and len(words) > 1:
            return words[1].removeprefix("v")
    raise LookupError(f"{GO / folder / 'go.mod'} does not require {module}")
