"""What every test leaves as it found it, and the same examples in every run of the properties."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import zlib
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from nvml.build import Built, NoCompilerError, build

# A run that fails can be repeated, and a machine that is busy fails nothing: new examples are for `make fuzz` and for
# the machines of `make sim`, which take as long as one wants to wait.
settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Files in one order for all workers, not by folders: waits for real processes spread over the run."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: zlib.crc32(item.nodeid.split("::")[0].encode()))


def pytest_collection_finish():
    """Thousands of tests, and all they import, stay until the end, so the collector need not scan them."""
    gc.collect()
    gc.freeze()


def _mounts_under(folder):
    """The mounts below `folder`, the last one first."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except FileNotFoundError:  # no Linux
        return []
    return [target for line in reversed(lines) if (target := line.split(" ")[1]).startswith(f"{folder}/")]


@pytest.fixture
def tmp_path(tmp_path):
    """
    Fails a test that leaves a mount in its folder, and removes the mount.

    pytest could not remove that folder later, and ends with an error that names no test.
    """
    yield tmp_path
    if left := _mounts_under(tmp_path):
        for target in left:
            subprocess.run(["umount", "--lazy", target], check=True)
        pytest.fail(f"mounts left behind: {', '.join(os.path.relpath(target, tmp_path) for target in left)}")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Our stand-in for libnvidia-ml, compiled once; skips without a C compiler."""
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except NoCompilerError as error:
        pytest.skip(f"the NVML library cannot be made: {error}")


@pytest.fixture(autouse=True)
def sockets_closed(monkeypatch):
    """
    Fails a test that ends a loop with an open socket.

    The collector would name the test that happens to run when it finds the socket.
    """
    close, left = asyncio.SelectorEventLoop.close, []

    def noted(loop):
        left.extend(repr(each) for each in list(loop._transports.values()) if each._sock is not None)
        close(loop)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "close", noted)
    yield
    if left:
        pytest.fail(f"sockets left open: {', '.join(left)}")


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """Commands and services set up the logging of their process, and a test may run one in its own."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)
