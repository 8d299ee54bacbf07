"""Checks on real hardware, with `--hardware-report` only: no MIG mode, clock or foreign process is changed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu.hardware_report import HardwareReport

from sluice.contracts.messages import GpuReport

OPTION, VARIABLE = "--hardware-report", "SLUICE_HARDWARE_REPORT"
_REPORT = pytest.StashKey[HardwareReport]()
_LOOKED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--hardware-report=DIR`; or the variable, where pytest learns of this file too late for an option."""
    parser.addoption(OPTION, default=None, metavar="DIR", help="check the GPUs of this machine and write a report")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = HardwareReport()
    config.stash[_LOOKED] = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What became of each check that looked at the hardware goes into the report."""
    told: pytest.TestReport = yield
    if "hardware_report" in getattr(item, "fixturenames", ()):
        why = ""
        if told.outcome == "skipped" and isinstance(told.longrepr, tuple):
            why = str(told.longrepr[2]).removeprefix("Skipped: ")
        elif told.outcome == "failed":
            why = str(getattr(getattr(told.longrepr, "reprcrash", None), "message", told.longrepr)).split("\n")[0]
        if told.when == "call" or told.outcome != "passed":
            item.config.stash[_REPORT].check(item.name, told.outcome, why)
    return told


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it, if a GPU was looked at."""
    folder = _folder(session.config)
    if folder is not None and session.config.stash[_LOOKED]:
        for path in session.config.stash[_REPORT].write(folder):
            session.config.get_terminal_writer().line(f"\nwritten: {path}")


def _folder(config: pytest.Config) -> Path | None:
    said = config.getoption(OPTION, default=None) or os.environ.get(VARIABLE)
    return Path(said) if said else None


def _why_not(config: pytest.Config) -> str:
    """Why nothing is looked at; empty when there is a GPU and its tests were asked for."""
    if _folder(config) is None:
        return f"looks at the GPUs of this machine only when asked to: {OPTION}=DIR or {VARIABLE}=DIR"
    names = [entry.name for entry in Path("/dev").glob("nvidia*")]
    there = any(name.removeprefix("nvidia").isdecimal() for name in names)
    return "" if there else "this machine has no /dev/nvidia0: no GPU, or no driver"


@pytest.fixture(scope="session")
def hardware_report(request: pytest.FixtureRequest) -> HardwareReport:
    """The directory of facts. Skips without a GPU, or without a request."""
    why = _why_not(request.config)
    if why:
        pytest.skip(why)
    return request.config.stash[_REPORT]


@pytest.fixture(scope="session")
def backend(hardware_report: HardwareReport, request: pytest.FixtureRequest) -> Iterator[object]:
    """Our NVML backend. That it cannot begin on a machine with a GPU is a failure, not a reason to skip."""
    from sluice_node_agent.device.nvml.backend import NvmlBackend  # noqa: PLC0415 - needs nvidia-ml-py: only where there is a GPU
    from sluice_node_agent.device.processes import Processes  # noqa: PLC0415

    gpus = NvmlBackend(Processes())
    request.config.stash[_LOOKED] = True
    yield gpus
    gpus.close()


@pytest.fixture(scope="session")
def gpus(backend) -> tuple[GpuReport, ...]:
    """The GPUs as our backend reads them."""
    found = backend.read()
    assert found, "the driver lists no GPU although /dev/nvidia0 is there"
    return found


@pytest.fixture(scope="session")
def quiet_gpu(backend, gpus) -> GpuReport:
    """A healthy unused GPU without MIG: checks with processes of their own disturb no other work there."""
    for gpu in gpus:
        busy = [holder for holder in backend.processes(gpu.uuid, gpu.uuid) if holder.kind != "file"]
        if gpu.healthy and not gpu.mig_enabled and not busy:
            return gpu
    pytest.skip("no healthy GPU without MIG is free of processes")
