"""
Takes the other services' packages and commands out of an image's environment: a wheel holds all of them.

    prune.py SERVICE ENVIRONMENT

The console keeps everything, for `sluice up` runs the services as processes.
"""
# ruff: noqa: INP001 - a program of its own, in no package

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

SERVICES = ("pod-watcher", "allocator", "node-agent", "inventory", "console")


class PruneError(Exception):
    """Not the environment or not the service that was meant."""


def prune(service: str, environment: Path) -> list[Path]:
    """Remove what belongs to other services; returns what was removed. Raises PruneError."""
    if service not in SERVICES:
        raise PruneError(f"{service!r} is no service ({', '.join(SERVICES)})")
    if service == "console":
        return []
    (site,) = environment.glob("lib/python3.*/site-packages")
    if not (site / _package(service)).is_dir():
        raise PruneError(f"{site} has no {_package(service)}")
    others = [other for other in SERVICES if other != service]
    removed = [site / _package(other) for other in others]
    removed += [environment / "bin" / ("sluice" if other == "console" else f"sluice-{other}") for other in others]
    for path in removed:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return removed


def _package(service: str) -> str:
    return f"sluice_{service.replace('-', '_')}"


def main(words: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        service, environment = words
        prune(service, Path(environment))
    except (PruneError, OSError, ValueError) as error:
        sys.stderr.write(f"prune: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
