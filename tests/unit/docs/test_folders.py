"""tests/README.md, the map of the tests."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def test_each_folder_of_tests_is_on_the_map() -> None:
    """A newcomer does not find where a kind of test belongs, or looks for a folder that is gone."""
    rows = [line.split("|")[1] for line in (TESTS / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.name for path in TESTS.iterdir() if any(path.glob("**/*.py"))}
