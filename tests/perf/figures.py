"""What every measurement needs: the machine's name, options, what processes report, and a place to write figures to."""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

DOCUMENT = Path(__file__).resolve().parent / "figures.md"
LOG_END_BYTES = 2_000_000
"""Of each log: its process was started not long ago."""


@dataclass(frozen=True)
class Threshold:
    """One figure that must be `at least` or `at most` its bound, in `unit`."""

    what: str
    measured: float
    sense: Literal["at least", "at most"]
    bound: float
    unit: str = ""
    digits: int = 3

    @property
    def margin(self) -> float:
        """How far it is on the right side; below zero when it is missed."""
        return self.measured - self.bound if self.sense == "at least" else self.bound - self.measured

    @property
    def met(self) -> bool:
        return self.margin >= 0

    def row(self) -> str:
        say = f"{{:,.{self.digits}f}}".format
        unit = f" {self.unit}" if self.unit else ""
        figures = f"{say(self.measured)}{unit} | {self.sense} {say(self.bound)}{unit} | {say(self.margin)}"
        return f"| {self.what} | {figures} | {'met' if self.met else '**missed**'} |"


def table(thresholds: Sequence[Threshold]) -> str:
    rows = (threshold.row() for threshold in thresholds)
    return "\n".join(["| what | measured | threshold | margin | |", "|---|---|---|---|---|", *rows])


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return (
        f"{model}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"Python {platform.python_version()}, Linux {platform.release()}"
    )


def service_name(process: psutil.Process) -> str:
    """`allocator`, `nats-server`, ..."""
    words = process.cmdline()
    module = next((word for word in words if word.startswith("sluice_")), Path(words[0]).name)
    return module.removeprefix("sluice_").replace("_", "-")


def ready_s(process: psutil.Process, logs: Iterable[Path]) -> float | None:
    """Seconds from the start of a process to its `ready` record in one of the logs; None before."""
    for log in logs:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END_BYTES))
            for line in file.read().splitlines():
                if b'"ready"' in line and f'"pid":{process.pid}'.encode() in line:
                    return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() - process.create_time()
    return None


def messages_at(monitor: str, within_s: float) -> float:
    """In and out of a broker in its present run. Raises OSError without an answer."""
    with urllib.request.urlopen(f"http://{monitor}/varz", timeout=within_s) as answer:
        seen = json.load(answer)
    return float(seen["in_msgs"] + seen["out_msgs"])


def options_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark whose figures can be kept; more may be added."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"tests/perf {name}", description=description, formatter_class=form)
    parser.add_argument("--write", action="store_true", help="put the figures into tests/perf/figures.md")
    return parser


def add_against(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark that measures another checkout in the same run."""
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, with a .venv of its own")


def checkouts_of(options: argparse.Namespace) -> list[Path]:
    """This one, and that of `--against`."""
    return [Path(__file__).resolve().parents[2], *([options.against.resolve()] if options.against else [])]


def compared(what: str, unit: str, rounds: Sequence[Sequence[Mapping[str, float]]], *, digits: int) -> str:
    """A table of medians; each round has the figures of this checkout, and of another one if there is one."""
    own, others = [each[0] for each in rounds], [beside for _, *rest in rounds for beside in rest]
    lines = [f"| {what} | {unit} |{' other checkout | ratio |' if others else ''}", "|---" * (4 if others else 2) + "|"]
    for name in own[0]:
        ours = statistics.median(each[name] for each in own)
        cells = [f"{ours:,.{digits}f}"]
        if others:
            theirs = statistics.median(each.get(name, 0.0) for each in others)
            cells += [f"{theirs:,.{digits}f}", f"{ours / theirs:.2f}" if theirs else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def conclude(name: str, section: str, promised: Sequence[Threshold] = (), *, write: bool) -> int:
    """Print the figures and what is promised of them, and keep them if `write`; 1 when one is not kept, else 0."""
    text = f"{section}\n\n{table(promised)}" if promised else section
    sys.stdout.write(f"{machine()}\n\n{text}\n")
    if write:
        _write_section(name, text)
    return int(not all(each.met for each in promised))


def _write_section(name: str, section: str) -> None:
    """Put figures between their marks in tests/perf/figures.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
    if begin not in text:
        raise SystemExit(f"{DOCUMENT} has no line {begin}")
    block = f"{begin}\nMachine: {machine()}.\n\n{section}\n{end}"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    DOCUMENT.write_text(re.sub(pattern, lambda _: block, text, flags=re.DOTALL), encoding="utf-8")
