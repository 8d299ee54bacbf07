"""What Sluice was tried on, for docs/install.md and README.md: from the last recorded runs (`make test-cluster`)."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "docs/cluster-runs.json"
NONE = "No run is recorded yet (`make test-cluster OPTIONS=--record`).\n"
MARKED = re.compile(r"(<!-- tried: from cluster-runs\.json by `make docs` -->\n).*?(<!-- end -->)", re.DOTALL)


def install_page() -> str:
    """docs/install.md with a table of versions and suites."""
    return _filled(ROOT / "docs/install.md", _table())


def readme() -> str:
    """README.md with one sentence."""
    return _filled(ROOT / "README.md", _sentence())


def _filled(page: Path, wanted: str) -> str:
    text = page.read_text()
    if len(MARKED.findall(text)) != 1:
        raise LookupError(f"{page} has not exactly one place for what was tried")
    return MARKED.sub(lambda found: f"{found[1]}{wanted}{found[2]}", text)


def _runs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    return dict(sorted(found.items(), key=lambda run: int(run[0].split(".")[1])))


def _table() -> str:
    runs = _runs()
    if not runs:
        return NONE
    names = list(dict.fromkeys(name for run in runs.values() for name in run["versions"]))
    suites = list(dict.fromkeys(name for run in runs.values() for name in run["suites"]))
    rows = [
        ["", *(run["date"] for run in runs.values())],
        ["---"] * (len(runs) + 1),
        *([name, *(str(run["versions"].get(name, "")) for run in runs.values())] for name in names),
        ["machines that ran pods", *(str(run["machines"]) for run in runs.values())],
        *([f"tests: {name}", *(_counts(run["suites"].get(name)) for run in runs.values())] for name in suites),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _counts(suite: dict[str, int] | None) -> str:
    if suite is None:
        return "not run"
    return f"{suite['passed']} passed" + (f", {suite['skipped']} skipped" if suite["skipped"] else "")


def _sentence() -> str:
    runs = list(_runs().values())
    if not runs:
        return NONE
    versions = " and ".join(run["versions"]["Kubernetes"] for run in runs)
    newest = runs[-1]
    suites = ", ".join(f"{_counts(suite)} ({name})" for name, suite in newest["suites"].items())
    return f"Simulated GPUs on real Kubernetes {versions}; on the newest, {newest['date']}: {suites}.\n"
