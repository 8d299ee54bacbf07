"""
Write the version of pyproject.toml into the chart and what names images; `--check` fails where one names another.

    .venv/bin/python tools/version.py [--check]
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+"
PLACES = (
    ("deploy/compose/compose.yaml", r":-sluice-[\w-]+:"),
    ("deploy/docker/Dockerfile", r"ARG VERSION="),
    ("deploy/docker/Dockerfile", r"sluice-[\w-]+:"),
    ("deploy/helm/sluice/Chart.yaml", r"(?m:^)(?:version|appVersion): "),
    ("docs/tutorial-cluster.md", r"sluice-[\w-]+:"),
)
"""Files, and what stands before a version of ours in them."""


def main() -> int:
    """Write, or only compare. 1 when a file names another version, or one of the places has none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file names another version")
    check = parser.parse_args().check
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    wrong = []
    for path, before in PLACES:
        text = (ROOT / path).read_text()
        written, count = re.subn(rf"({before}){VERSION}", rf"\g<1>{version}", text)
        if not count:
            wrong.append(f"{path}: nothing like `{before}{version}` is in it; mend PLACES in tools/version.py")
        elif written != text and check:
            wrong.append(f"{path}: does not name version {version} of pyproject.toml; run tools/version.py")
        elif written != text:
            (ROOT / path).write_text(written)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
