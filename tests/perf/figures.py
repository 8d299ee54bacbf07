"""What every measurement needs: a fleet, a system that is up, the machine's name, and a place to write figures to."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
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


def write_section(name: str, section: str) -> None:
    """Put figures between their marks in tests/perf/figures.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
    if begin not in text:
        raise SystemExit(f"{DOCUMENT} has no line {begin}")
    block = f"{begin}\nMachine: {machine()}.\n\n{section}\n{end}"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    DOCUMENT.write_text(re.sub(pattern, lambda _: block, text, flags=re.DOTALL), encoding="utf-8")
