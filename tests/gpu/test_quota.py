"""The time quota on a real, unused GPU without MPS: library, scheduler, and CUDA processes that all want it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from gpu.hardware_report import HardwareReport
from quota.compiled import CannotBuildError, NoCompilerError, build_library
from quota.rig import Lines

from sluice.contracts.messages import GpuReport

SPINNING = Path(__file__).with_name("spinning.py")
FIRST_CONTEXT_S = 90.0
KERNEL_US = 500.0
SETTLE_S, MEASURE_S = 2.0, 10.0
ERROR_PERCENT = 5.0
OVERLAP = 1.02
"""Kernels of several processes that ran at once would sum up to more than the time there was."""
REQUESTS = ((0.3, 0.7), (0.1, 0.2, 0.3, 0.4))


@pytest.fixture(scope="module")
def library(hardware_report: HardwareReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_library(Path(tmp_path_factory.mktemp("quota")))
    except NoCompilerError as error:
        pytest.skip(str(error))
    except CannotBuildError as error:
        pytest.fail(str(error))


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: unix sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as found:
        yield Path(found)


def spin(uuid: str, library: Path | None, socket: Path | None) -> Lines:
    """A process that is ready to begin; without a library it has no quota."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "SLUICE_"))}
    quota = {"LD_PRELOAD": str(library), "SLUICE_QUOTA_SOCKET": str(socket)} if library is not None else {}
    process = Lines([sys.executable, "-I", "-S", str(SPINNING), str(KERNEL_US)],
                    plain | quota | {"CUDA_VISIBLE_DEVICES": uuid})  # fmt: skip
    assert process.hear(FIRST_CONTEXT_S) == "ready"
    return process


def counted(process: Lines, until: float) -> tuple[int, float]:
    """What it had finished, and when it said so: the first line after `until`."""
    while True:
        kernels, moment = process.hear().split()
        if float(moment) >= until:
            return int(kernels), float(moment)


def parts_of_the_time(processes: Sequence[Lines]) -> list[float]:
    for process in processes:
        process.say("")
    begin = time.monotonic() + SETTLE_S
    first = [counted(process, begin) for process in processes]
    last = [counted(process, begin + MEASURE_S) for process in processes]
    return [(b[0] - a[0]) * KERNEL_US / 1e6 / (b[1] - a[1]) for a, b in zip(first, last, strict=True)]


@pytest.mark.parametrize("requests", REQUESTS)
def test_tenants_get_the_time_that_they_were_promised(
    requests: tuple[float, ...], quiet_gpu: GpuReport, library: Path, folder: Path, hardware_report: HardwareReport
) -> None:
    """A greedy neighbour would take a tenant's time."""
    from sluice_node_agent.shell.quota.server import QuotaServer  # noqa: PLC0415 - the skip comes first

    server = QuotaServer("h1")
    server.start()
    processes: list[Lines] = []
    try:
        for number, request in enumerate(requests):
            socket = folder / f"{number}.sock"
            server.add_tenant(f"t{number}", socket, request=request, limit=1.0, width_percent=100, uid=os.getuid())
            processes.append(spin(quiet_gpu.uuid, library, socket))
        parts = parts_of_the_time(processes)
        assert [process.errors() for process in processes] == [""] * len(processes)
        used = server.usage()
    finally:
        for process in processes:
            process.close()
        server.stop()
    shares = [part / sum(parts) for part in parts]
    worst = max(100 * abs(share / request - 1) for share, request in zip(shares, requests, strict=True))
    name = f"{len(requests)} tenants"
    hardware_report.fact("time quota", f"shares of {name}, promised {requests}", [round(share, 4) for share in shares])
    hardware_report.fact("time quota", f"busy with {name}", round(sum(parts), 4))
    hardware_report.fact("time quota", f"tokens of {name}", [usage.tokens for usage in used.values()])
    assert sum(parts) <= OVERLAP, f"kernels of several tenants ran at once: {parts}"
    assert worst <= ERROR_PERCENT, f"{shares} instead of {requests}"


def test_an_uncontended_process_loses_next_to_nothing(
    quiet_gpu: GpuReport, library: Path, folder: Path, hardware_report: HardwareReport
) -> None:
    """Every fractional pod would pay for neighbours that it does not have."""
    from sluice_node_agent.shell.quota.server import QuotaServer  # noqa: PLC0415

    found: dict[bool, float] = {}
    server = QuotaServer("h1")
    server.start()
    try:
        server.add_tenant("a", folder / "a.sock", request=1.0, limit=1.0, width_percent=100, uid=os.getuid())
        for quota in (False, True):
            process = spin(quiet_gpu.uuid, library if quota else None, folder / "a.sock")
            try:
                found[quota] = parts_of_the_time([process])[0]
            finally:
                process.close()
    finally:
        server.stop()
    percent = 100 * (1 - found[True] / found[False])
    hardware_report.fact("time quota", "percent lost by an uncontended process", round(percent, 3))
    assert percent < ERROR_PERCENT


def test_the_driver_has_what_the_library_stands_in_front_of(library: Path, hardware_report: HardwareReport) -> None:
    """A function of another name would be launched past the quota, unnoticed."""
    script = (
        "import ctypes, sys\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "print(*(name for name in sys.argv[1:] if not hasattr(cuda, name)))\n"
    )
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, timeout=30,
                            check=True).stdout  # fmt: skip
    names = [line.split()[-1] for line in listed.splitlines() if line.split()[-1].startswith("cu")]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, *names], capture_output=True, text=True,
                          timeout=60, check=True)  # fmt: skip
    missing = done.stdout.split()
    hardware_report.fact("time quota", "functions missing in this driver", missing)
    assert not {"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemAlloc_v2"} & {
        *missing
    }
