"""Pages are whole: found, linked, drawn, and true about what is there."""

import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sluice_allocator.settings import AllocatorSettings
from sluice_console.core.doctor.findings import Check
from sluice_console.settings import ConsoleSettings
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings
from sluice_pod_watcher.settings import PodWatcherSettings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
WHERE = ("*.md", "docs/*.md", "deploy/**/*.md", "services/*/README.md")
PAGES = sorted(page for pattern in WHERE for page in ROOT.glob(pattern))
SETTINGS = {
    "ALLOCATOR": AllocatorSettings,
    "CONSOLE": ConsoleSettings,
    "INVENTORY": InventorySettings,
    "NODE_AGENT": NodeAgentSettings,
    "POD_WATCHER": PodWatcherSettings,
}
OF_COMPOSE = {"SLUICE_INVENTORY_PORT", "SLUICE_WEB_PORT"}
"""Put into deploy/compose/compose.yaml by compose itself: no setting, though it is called like one."""
README_LINES_MAX = 150
READ_BY_HAND = ("libs", "services", "tests", "deploy", "native", "tools")
_VARIABLE = re.compile(r"\bSLUICE_[A-Z][A-Z0-9_]*[A-Z0-9]\b")


def _set_by_settings() -> set[str]:
    own = {f"SLUICE_{owner}_{name.upper()}" for owner, cls in SETTINGS.items() for name in cls.__struct_fields__}
    return own | {f"SLUICE_{name.upper()}" for cls in SETTINGS.values() for name in cls.__struct_fields__}


def _read_by_hand() -> set[str]:
    """Those that are written out somewhere in code or manifests."""
    found: set[str] = set()
    for folder in READ_BY_HAND:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".sh", ".yaml", ".c", ".h"} and "docs" not in path.parts:
                found |= set(_VARIABLE.findall(path.read_text(encoding="utf-8")))
    return found


def test_every_page_is_in_the_index() -> None:
    assert len(LINKING) > 40, "a moved folder would make the tests of links look at nothing"
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w.-]+\.md)\)", index))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} - linked == set()


def test_readme_can_be_skimmed() -> None:
    """A newcomer decides within a few screens whether to go on."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < README_LINES_MAX


def test_every_variable_that_a_page_names_is_read() -> None:
    named = {name for page in PAGES for name in _VARIABLE.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 40, "the search finds nothing any more"
    of_services = {name for name in named if name.startswith(tuple(f"SLUICE_{owner}_" for owner in SETTINGS))}
    assert sorted(of_services - _set_by_settings() - OF_COMPOSE) == []
    assert sorted(named - of_services - _set_by_settings() - _read_by_hand()) == []


TESTS = ROOT / "tests"


def test_each_folder_of_tests_is_on_the_map() -> None:
    """A newcomer does not find where a kind of test belongs, or looks for a folder that is gone."""
    rows = [line.split("|")[1] for line in (TESTS / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.name for path in TESTS.iterdir() if any(path.glob("**/*.py"))}


OPERATIONS = (DOCS / "operations.md").read_text()


@pytest.mark.parametrize("check", Check)
def test_a_person_can_look_up_what_the_doctor_looks_at(check):
    assert f"| `{check}` |" in OPERATIONS


RECORDS = sorted((DOCS / "adr").glob("0*.md"))
INDEX = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_parts_and_its_row(record: Path) -> None:
    """A decision without a status, or outside of the index, is looked for in vain."""
    text = record.read_text(encoding="utf-8")
    title = re.match(rf"# {record.name[:4]} (.+)\n", text)
    assert title is not None
    assert re.search(r"^\*\*Status\*\* (Accepted|Superseded)", text, re.MULTILINE)
    assert f"| [{record.name[:4]}]({record.name}) | {title[1]} |" in INDEX


GUIDES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/debugging-code.md", "docs/extend.md")
_PATH = re.compile(r"`((?:docs|libs|proto|services|tests|tools)/[\w./-]+)`")


@pytest.mark.parametrize("page", GUIDES)
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


FOLDERS = ("docs", "services", "tests", "deploy")
LINKING = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
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


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(_text(page)) if not _OUTWARD.match(link)]
    assert not [wrong for link in links if (wrong := _wrong(page, link))]


WAY = DOCS / "life-of-a-pod.md"
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text(encoding="utf-8"))["question"]
_NAMED = re.compile(r"`((?:libs|services|native|proto|deploy|tests|tools)/[^`\s]+|\.[a-z]\w+)`")
_LINKED = re.compile(r"\]\(([\w.-]+\.md)[#)]")


def named_on(page: Path) -> set[str]:
    return set(_NAMED.findall(page.read_text(encoding="utf-8")))


def test_every_file_on_the_way_is_there() -> None:
    """A renamed file leaves its reader in front of nothing."""
    named = named_on(WAY)
    assert len(named) > 50, "the search finds nothing any more"
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_there_are_questions() -> None:
    assert len(QUESTIONS) >= 20
    assert len({each["asks"] for each in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["asks"])
def test_a_question_has_its_answer_on_the_way(question: dict[str, str]) -> None:
    assert (ROOT / question["file"]).is_file()
    page = ROOT / question.get("through", "docs/life-of-a-pod.md")
    assert page == WAY or page.name in _LINKED.findall(WAY.read_text(encoding="utf-8"))
    assert question["file"] in named_on(page)


PICTURES = sorted((DOCS / "images").glob("*.svg"))
ILLUSTRATED = [ROOT / "README.md", *DOCS.glob("*.md")]


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
    shown = "".join(page.read_text(encoding="utf-8") for page in ILLUSTRATED)
    assert [picture.name for picture in PICTURES if f"images/{picture.name}" not in shown] == []
