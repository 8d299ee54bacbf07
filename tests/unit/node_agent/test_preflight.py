"""`check` as a whole: what it covers, what it leaves alone, and in which order it is read."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.gpus.machine import made_hardware, well_made

from sluice_node_agent.preflight.all_checks import check_machine
from sluice_node_agent.preflight.findings import Check, worst

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hardware(tmp_path):
    return made_hardware(tmp_path)


@pytest.fixture
def well(hardware):
    with well_made(hardware) as machine:
        yield machine


def test_a_node_that_is_all_well_has_nothing_to_fix(well):
    """A check that cries wolf is not read."""
    findings = check_machine(well)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert {finding.check for finding in findings} == set(Check) - {Check.SETTINGS, Check.DRIVER_FOR_GPU}
    assert not any(finding.remedy for finding in findings)
    assert worst(findings) == "ok"


def test_a_check_changes_nothing(well, hardware):
    """It is run beside live tenants."""

    def all_files():
        return {path: path.lstat().st_mtime_ns for path in well.data_dir.parent.rglob("*")}

    before = all_files()
    check_machine(well)
    assert all_files() == before


def test_a_simulated_node_is_not_asked_for_a_driver(well):
    """`sluice up` runs where there is no GPU at all."""
    machine = replace(well, simulated=True, root=well.root / "nowhere", mps_control="stand-in")
    findings = check_machine(machine)
    assert worst(findings) == "ok"
    assert {finding.check for finding in findings}.isdisjoint({Check.DRIVER, Check.TOOLKIT, Check.CAPABILITY_FILES})


def test_every_check_has_a_row_in_the_documentation():
    """A person looks there for what a finding means."""
    rows = [
        line.split("|")[1].strip().strip("`")
        for line in (ROOT / "docs/node.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert [row for row in rows if row in set(Check)] == list(Check)
