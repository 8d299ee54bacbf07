"""
Whether a software bill of materials (CycloneDX JSON) names what is pinned, all of it, in the versions that are pinned.

    python tools/sbom_check.py out/sbom.cdx.json

A list that leaves a package out is worse than none: a search there for a faulty one says that it is not here. Pins
for other systems than this one need not be in it.
"""

import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "requirements" / "dev.txt"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def plain(name: str) -> str:
    """A package's name as indexes compare it (https://packaging.python.org/en/latest/specifications/name-normalization/)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Versions by name, of a file of requirements."""
    return {plain(name): version for name, version in _PIN.findall(text)}


def problems(document: dict[str, object], pins: dict[str, str], installed: frozenset[str]) -> list[str]:
    """What is wrong with a bill, in sentences; `installed` are the packages that are here."""
    if document.get("bomFormat") != "CycloneDX":
        return ["it is no CycloneDX"]
    components = document.get("components")
    assert isinstance(components, list)
    listed = {plain(each["name"]): each.get("version", "") for each in components}
    wrong = [
        f"{name} {pins[name]} is pinned and installed, and not listed"
        for name in sorted(set(pins) & installed - set(listed))
    ]
    wrong += [
        f"{name} is pinned as {pins[name]} and listed as {version}"
        for name, version in sorted(listed.items())
        if name in pins and version != pins[name]
    ]
    return wrong


def main(arguments: list[str]) -> int:
    """Check a file. Returns the exit code."""
    (path,) = arguments
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    installed = frozenset(plain(each.metadata["Name"]) for each in distributions())
    wrong = problems(document, pinned(PINS.read_text(encoding="utf-8")), installed)
    for each in wrong:
        sys.stderr.write(f"{path}: {each}\n")
    if not wrong:
        print(f"{path}: {len(document['components'])} packages, as they are pinned")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
