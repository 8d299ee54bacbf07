"""The pages for contributors name files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/debugging-code.md", "docs/extend.md")
_PATH = re.compile(r"`((?:docs|libs|proto|services|tests|tools)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_of_a_guide_is_there(page: str) -> None:
    """A recipe whose step names a file that was moved cannot be followed."""
    paths = _PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_step_of_a_recipe_is_on_a_line_of_its_own() -> None:
    recipes = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(recipes) == 4
    for recipe in recipes:
        steps = [int(number) for number in re.findall(r"^(\d+)\. ", recipe, re.MULTILINE)]
        assert steps == list(range(1, len(steps) + 1))
