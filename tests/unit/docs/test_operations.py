"""The operator's page covers all that the doctor looks at."""

from pathlib import Path

import pytest

from sluice_console.core.doctor.findings import Check

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("check", Check)
def test_a_person_can_look_up_what_the_doctor_looks_at(check):
    assert f"| `{check}` |" in PAGE
