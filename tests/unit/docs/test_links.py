"""Pages lead to each other: every relative link in our Markdown goes to a file, and to a heading, that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("docs", "services", "tests", "deploy")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OUTWARD = re.compile(r"[a-z][a-z0-9+.-]*:")


def _text(page: Path) -> str:
    """Without code, in which brackets mean something else."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    plain = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = (re.sub(r"[`*]", "", head.strip()).lower() for head in re.findall(r"^#+ (.*)$", plain, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def _wrong(page: Path, link: str) -> str:
    path, _, anchor = link.partition("#")
    to = (page.parent / path).resolve() if path else page
    if not to.exists():
        return f"{link}: there is no such file"
    if anchor and to.suffix == ".md" and anchor not in _anchors(to):
        return f"{link}: there is no such heading"
    return ""


def test_there_are_pages() -> None:
    """A moved folder would make the test below look at nothing."""
    assert len(PAGES) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A reader who follows the link finds nothing there."""
    links = [link for link in _LINK.findall(_text(page)) if not _OUTWARD.match(link)]
    assert not [wrong for link in links if (wrong := _wrong(page, link))]
