"""What pages name besides commands: pages are in the index, and somebody reads the variables of the environment."""

import re
from pathlib import Path

from sluice_allocator.settings import AllocatorSettings
from sluice_console.settings import ConsoleSettings
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings
from sluice_pod_watcher.settings import PodWatcherSettings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("services/*/README.md")]
)
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
