"""What a process loads before it does anything: each command, and each start of a service, waits for that."""

import subprocess
import sys

import pytest

SERVICES = (
    "sluice_allocator.shell.app",
    "sluice_inventory.shell.app",
    "sluice_node_agent.shell.app",
    "sluice_pod_watcher.shell.folder.app",
)
NOT_FOR_SERVICES = ("aiohttp", "rich", "pygments", "cyclopts", "kubernetes", "opentelemetry.sdk", "cryptography")
NOT_FOR_A_COMMAND = ("asyncio", "nats", "grpc", "structlog", "google.protobuf", "msgspec", "sluice.contracts")


def loaded(*modules: str) -> set[str]:
    """Every module that a fresh interpreter has after importing these."""
    program = f"import sys, {', '.join(modules)}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("modules", "superfluous", "sign"),
    [
        pytest.param(SERVICES, NOT_FOR_SERVICES, "nats.aio.client", id="services"),
        pytest.param(("sluice_console.__main__",), NOT_FOR_A_COMMAND, "cyclopts", id="commands"),
    ],
)
def test_nobody_waits_for_libraries_that_are_not_used(modules, superfluous, sign):
    """Services start twice as fast as they would with all that is installed, commands four times."""
    found = loaded(*modules)
    assert sign in found
    assert not {name for name in found if name.startswith(superfluous)}


def test_a_library_that_was_left_out_can_still_be_used_by_others():
    """The webhook serves with aiohttp in a process whose NATS client was loaded without it."""
    found = loaded("sluice.runtime.nats.client", "sluice.runtime.logs", "aiohttp.web", "rich.console")
    assert {"aiohttp.web", "rich.console", "nats.aio.client", "structlog.dev"} <= found
