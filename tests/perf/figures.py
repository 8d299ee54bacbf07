"""What every measurement needs: a fleet, a system that is up, the machine's name, and a place to write figures to."""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

UP_TIMEOUT_S = 60.0
DOCUMENT = Path(__file__).resolve().parent / "figures.md"

FLEET = """
[[node]]
name = "node"
count = {nodes}
cpu_cores = 64
memory_mib = 524288
gpus = [{{ model = "A100-SXM4-40GB", count = {gpus}, mig = true }}]
[node.timing]
create_ms = 0
destroy_ms = 0
"""


def wait_until_up(data: Path, up: subprocess.Popen, log: Path) -> str:
    """The NATS address of the system once every node is open."""
    deadline = time.monotonic() + UP_TIMEOUT_S
    while time.monotonic() < deadline:
        if up.poll() is not None:
            raise SystemExit(f"sluice up ended early:\n{log.read_text()}")
        if "ready" in log.read_text().lower() and (data / "up.json").exists():
            return json.loads((data / "up.json").read_text())["nats_url"]
        time.sleep(0.05)
    raise SystemExit(f"sluice up was not ready after {UP_TIMEOUT_S:g} s:\n{log.read_text()}")


@contextlib.contextmanager
def sluice_up(root: Path, fleet: str, *options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """A `sluice up` in an empty folder: its process, and its broker's address. Manifests go into `root / "pods"`."""
    (root / "pods").mkdir()
    (root / "fleet.toml").write_text(fleet)
    command = [sys.executable, "-m", "sluice_console", "up", "--web", "off", "--fleet", str(root / "fleet.toml")]
    command += ["--pods", str(root / "pods"), "--data", str(root / "data"), *options]
    with (root / "up.log").open("w") as log:
        up = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield up, wait_until_up(root / "data", up, root / "up.log")
    finally:
        up.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.wait(20)
        if up.poll() is None:
            os.killpg(up.pid, signal.SIGKILL)
            up.wait(5)


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return (
        f"{model}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"Python {platform.python_version()}, Linux {platform.release()}"
    )


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what it has started is stopped and removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def options_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark whose figures can be kept; more may be added."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"tests/perf {name}", description=description, formatter_class=form)
    parser.add_argument("--write", action="store_true", help="put the figures into tests/perf/figures.md")
    return parser


def conclude(name: str, section: str, *, write: bool) -> None:
    """Print the figures, and keep them if `write`."""
    sys.stdout.write(f"{machine()}\n\n{section}\n")
    if write:
        write_section(name, section)


def write_section(name: str, section: str) -> None:
    """Put figures between their marks in tests/perf/figures.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
    if begin not in text:
        raise SystemExit(f"{DOCUMENT} has no line {begin}")
    block = f"{begin}\nMachine: {machine()}.\n\n{section}\n{end}"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    DOCUMENT.write_text(re.sub(pattern, lambda _: block, text, flags=re.DOTALL), encoding="utf-8")
