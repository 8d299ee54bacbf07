"""
Picks from requirements/dev.txt the pins, with their hashes, of exactly the distributions that an image needs.

    pins.py report REPORT.json     what `pip install --dry-run --report` would install
    pins.py build NAME             NAME and what the pins say that it needs

It resolves nothing itself, and gives no pin that is not in the file: then the build ends.
"""
# ruff: noqa: INP001 - a program of its own, in no package

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PINS = Path("requirements/dev.txt")
BUILD = {"hatchling": ("hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")}
"""What each build backend needs (its own metadata); none of it gets into the image."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==", re.MULTILINE)


class PinError(Exception):
    """A distribution is needed for which there is no pin."""


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def blocks_of(text: str) -> dict[str, str]:
    """Each pin with its lines of hashes, by normalised name."""
    starts = [match.start() for match in _PIN.finditer(text)]
    ends = [*starts[1:], len(text)]
    blocks: dict[str, str] = {}
    for start, end in zip(starts, ends, strict=True):
        block = text[start:end]
        name = _PIN.match(block)
        assert name is not None
        kept = [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        blocks[normalised(name[1])] = "\n".join(kept)
    return blocks


def needed(report: Mapping[str, object]) -> list[str]:
    """The distributions that a report of pip names, without our own, which is not from an index."""
    installs = report["install"]
    assert isinstance(installs, list)
    names = [normalised(each["metadata"]["name"]) for each in installs]
    return sorted(name for name in names if name != "sluice-gpu")


def pins_of(names: Sequence[str], text: str) -> str:
    """The lines for pip. Raises PinError."""
    blocks = blocks_of(text)
    missing = [name for name in names if name not in blocks]
    if missing:
        raise PinError(f"{PINS} has no pin of {', '.join(missing)}: `make lock` makes it")
    return "\n".join(blocks[name] for name in names) + "\n"


def main(words: Sequence[str]) -> int:
    """Print the pins. Returns the exit code."""
    try:
        what, argument = words
        names = list(BUILD[argument]) if what == "build" else needed(json.loads(Path(argument).read_text("utf-8")))
        sys.stdout.write(pins_of(names, PINS.read_text("utf-8")))
    except (PinError, OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"pins: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
