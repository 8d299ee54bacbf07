"""Only pinned packages are installed, and their list is complete."""

import re
from pathlib import Path

import pytest
import sbom_check

ROOT = Path(__file__).resolve().parents[2]
PINS = {"aiohttp": "3.1", "ruamel-yaml": "0.18"}
HERE = frozenset(PINS)


def bill(**versions: str) -> dict:
    components = [{"name": name.replace("_", "."), "version": version} for name, version in versions.items()]
    return {"bomFormat": "CycloneDX", "components": components}


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_package_has_one_version_and_known_files(path):
    """A compromised index could serve anything under a name."""
    text = path.read_text()
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    assert len(blocks) == len(sbom_check.pinned(text)) > 10
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


@pytest.mark.parametrize(
    ("listed", "wrong"),
    [
        (bill(aiohttp="3.1", Ruamel_YAML="0.18", pip="1"), []),
        (bill(aiohttp="3.1"), ["ruamel-yaml 0.18 is pinned and installed, and not listed"]),
        (bill(aiohttp="3.2", Ruamel_YAML="0.18"), ["aiohttp is pinned as 3.1 and listed as 3.2"]),
        ({}, ["it is no CycloneDX"]),
    ],
    ids=["what is pinned, and more", "a package left out", "another version", "an error page, for instance"],
)
def test_a_bill_lists_what_is_pinned_in_its_version(listed, wrong):
    """A search for a faulty package would miss it; names are compared as indexes do."""
    assert sbom_check.problems(listed, PINS, HERE) == wrong


def test_tools_that_look_at_packages_are_not_among_them():
    """They have some fifty packages of their own, which Sluice does not need."""
    ours = sbom_check.pinned((ROOT / "requirements" / "dev.txt").read_text())
    assert not {"cyclonedx-bom", "pip-audit"} & set(ours)
