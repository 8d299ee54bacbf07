"""What a newcomer asks of the code, and docs/life-of-a-pod.md, which leads to the answers."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "life-of-a-pod.md"
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text(encoding="utf-8"))["question"]
_NAMED = re.compile(r"`((?:libs|services|native|proto|deploy|tests|tools)/[^`\s]+|\.[a-z]\w+)`")
_LINK = re.compile(r"\]\(([\w.-]+\.md)[#)]")
LEAST = 20


def named_on(page: Path) -> set[str]:
    return set(_NAMED.findall(page.read_text(encoding="utf-8")))


def test_every_file_on_the_way_is_there() -> None:
    """A renamed file leaves its reader in front of nothing."""
    named = named_on(PAGE)
    assert len(named) > 50, "the search finds nothing any more"
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_there_are_questions() -> None:
    """An empty file would ask nothing."""
    assert len(QUESTIONS) >= LEAST
    assert len({each["asks"] for each in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["asks"])
def test_a_question_has_its_answer_on_the_way(question: dict[str, str]) -> None:
    """A newcomer searches through a thousand files."""
    assert (ROOT / question["file"]).is_file()
    page = ROOT / question.get("through", "docs/life-of-a-pod.md")
    if page != PAGE:
        linked = set(_LINK.findall(PAGE.read_text(encoding="utf-8")))
        assert page.name in linked
    assert question["file"] in named_on(page)
