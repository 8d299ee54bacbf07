"""The pictures of the pages are what tools/drawings.py draws, and can be shown."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def test_pictures_are_as_drawn() -> None:
    """A picture shows subjects, or places of profiles, that are others by now."""
    command = (sys.executable, "tools/drawings.py", "--check")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.name)
def test_a_picture_is_read_in_light_and_dark_and_by_a_screen_reader(picture: Path) -> None:
    """Black lines on a black page, or a picture that says nothing to a person who does not see it."""
    root = ET.parse(picture).getroot()
    assert root.get("role") == "img"
    assert "".join(root.find("{http://www.w3.org/2000/svg}title").itertext())
    style = "".join(root.find("{http://www.w3.org/2000/svg}style").itertext())
    assert "prefers-color-scheme: dark" in style
    assert not re.search(r"(fill|stroke)=\"#", picture.read_text(encoding="utf-8")), "a colour for one scheme only"


def test_every_picture_is_on_a_page() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [picture.name for picture in PICTURES if f"images/{picture.name}" not in shown] == []
