"""Every control of the threat table holds, and would be missed: docs/security.md claims only what is tried here."""

import ast
import re
from pathlib import Path

import pytest
from security import controls_of_pods, controls_of_services  # noqa: F401 - they are registered there
from security.controls import CONTROLS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_holds(name):
    """The attack that it is against is refused."""
    CONTROLS[name].shows()


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_that_is_removed_is_missed(name):
    """Else it could be removed, and every test would still pass."""
    with CONTROLS[name].without(), pytest.raises(AssertionError):
        CONTROLS[name].shows()


def rows() -> list[list[str]]:
    section = PAGE.read_text().partition("## Threats")[2].partition("\n## ")[0].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_control_is_in_the_table_and_the_table_has_no_other():
    """A row without a control is a wish."""
    assert sorted([name for row in rows() for name in re.findall(r"\*\*(.+?)\*\*", row[1])]) == sorted(CONTROLS)
    assert all(re.search(r"\*\*.+\*\*", row[1]) for row in rows()), "a row names no control"


def test_every_test_that_the_page_names_is_there():
    """A renamed test proves nothing to a reader of the page."""
    found = _NAMED.findall(PAGE.read_text())
    assert found
    for file, test in found:
        assert (ROOT / file).is_file(), file
        if test:
            names = {each.name for each in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(each, "name")}
            assert test in names, f"{file}::{test}"


def test_every_row_names_a_test():
    """Besides the control's own: one that tries it in place."""
    assert all(_NAMED.search(row[2]) for row in rows())
