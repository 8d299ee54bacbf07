"""The import contracts hold, would notice a breach, and are explained to people under the same names."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(ROOT / ".importlinter", encoding="utf-8")
NAMES = {
    section.rpartition(":")[2]: CONTRACTS[section]["name"]
    for section in CONTRACTS.sections()
    if section.startswith("importlinter:contract:")
}
SOURCES = ("libs", "services")
PACKAGES = {
    "sluice": "libs/sluice",
    "sluice_pod_watcher": "services/pod-watcher/sluice_pod_watcher",
    "sluice_allocator": "services/allocator/sluice_allocator",
    "sluice_node_agent": "services/node-agent/sluice_node_agent",
    "sluice_inventory": "services/inventory/sluice_inventory",
    "sluice_console": "services/console/sluice_console",
}
ANYTHING_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str((root / folder).parent) for folder in PACKAGES.values())
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return subprocess.run(
        [*command, "--no-cache", "--config", str(ROOT / ".importlinter")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def headings(document: Path) -> list[str]:
    return re.findall(r"^### (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_import_contract_is_kept():
    """A layer that leaks makes the cores untestable; it is noticed here, not a year later."""
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [
        ("libs", "libs/sluice/contracts/planted.py", "import sluice.runtime.clock"),
        ("libs", "libs/sluice/mig/planted.py", "import sluice.contracts.ids"),
        ("library", "libs/sluice/runtime/planted.py", "import sluice_allocator"),
        ("services", "services/console/sluice_console/planted.py", "import sluice_allocator"),
        ("inside", "services/allocator/sluice_allocator/core/planted.py", "import sluice_allocator.shell"),
        ("inside", "services/allocator/sluice_allocator/shell/planted.py", "import sluice_allocator.__main__"),
        ("inside", "services/node-agent/sluice_node_agent/device/planted.py", "import sluice_node_agent.shell"),
        ("inside", "services/node-agent/sluice_node_agent/core/planted.py", "import sluice_node_agent.device"),
        ("pure", "services/inventory/sluice_inventory/core/planted.py", "import asyncio"),
        ("pure", "services/inventory/sluice_inventory/core/planted.py", "def now():\n    import time"),
        ("pure", "libs/sluice/contracts/planted.py", "from os import environ"),
        ("pure", "services/pod-watcher/sluice_pod_watcher/core/planted.py", "from sluice.runtime import logs"),
        (
            "scheduler",
            "services/allocator/sluice_allocator/core/state/planted.py",
            "import sluice_allocator.core.gangs",
        ),
        ("nats", "services/console/sluice_console/shell/planted.py", "from nats.aio.client import Client"),
        ("nvml", "services/node-agent/sluice_node_agent/shell/planted.py", "import pynvml"),
        ("simulated", "services/node-agent/sluice_node_agent/device/planted.py", "import sluice_node_agent.simulated"),
        ("kubernetes", "services/allocator/sluice_allocator/shell/planted.py", "import kubernetes.client"),
        ("retry", "services/inventory/sluice_inventory/shell/planted.py", "import stamina"),
    ],
)
def test_a_breach_of_a_contract_is_noticed(tmp_path, contract, module, line):
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("allocator/sluice_allocator",):
        (tmp_path / "services" / package / "__main__.py").touch()
    (tmp_path / module).write_text(f"{line}\n", encoding="utf-8")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{NAMES[contract]} BROKEN" in result.stdout


def test_every_contract_is_explained_under_its_name():
    """A person who breaks a contract finds the paragraph that says why it is there."""
    assert headings(ROOT / "docs" / "architecture.md") == list(NAMES.values())


def test_every_contract_says_what_to_do():
    silent = [name for name in NAMES if not CONTRACTS[f"importlinter:contract:{name}"].get("broken_contract_guidance")]
    assert silent == []


def test_no_module_is_a_place_for_anything():
    """A module is found by what it is for; `utils` is for nothing."""
    modules = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    assert [path for path in modules if path.stem in ANYTHING_NAMES] == []


def test_production_imports_nothing_that_only_tests_need():
    """Tests are on the path here; where it is installed a service would end at once."""
    folders = "|".join(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "kubernetes")
    of_tests = re.compile(rf"^\s*(?:from|import) (?:{folders})\b", re.MULTILINE)
    modules = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in modules if of_tests.search(path.read_text(encoding="utf-8"))] == []


def test_every_package_is_checked():
    """A new service cannot grow outside of the contracts."""
    checked = CONTRACTS["importlinter"]["root_packages"].split()
    found = [path.parent.name for path in ROOT.glob("services/*/*/__init__.py")]
    assert sorted(checked) == sorted(["sluice", *found])
    assert sorted(PACKAGES) == sorted(checked)
