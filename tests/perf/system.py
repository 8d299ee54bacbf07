"""
What the running system costs: start-up and memory of each process, and the time from a manifest to its slice.

Measures and prints; asserts nothing (a busy machine is no defect). `--write` puts figures into tests/perf/figures.md.
Everything is real: `sluice up` with its processes, a real nats-server with fsync on every decision, real gRPC; only the
devices are simulated, and instant.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from factories.system import Running, fleet_text, up
from factories.waiting import meanwhile
from perf.figures import conclude, options_of, ready_s, service_name

from sluice.contracts.bus.events import Observed, Stream
from sluice.contracts.messages import Bound
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice_console.shell.live.local_user import local_credentials

PODS = 200
SETTLE_S = 5.0
"""How long a system that has just started is left alone before its memory is read."""
BOUND_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ProcessFigures:
    """One service's process: seconds from its start to its first `ready`, and MiB it alone would give back."""

    name: str
    started_s: float | None
    unique_mib: float
    resident_mib: float


@dataclass(frozen=True)
class Figures:
    """One run."""

    processes: list[ProcessFigures]
    latencies_ms: list[float]


def measure(nodes: int, gpus: int) -> Figures:
    """Start a system, read what it costs, run PODS pods through it one by one, stop it."""
    with tempfile.TemporaryDirectory(prefix="sluice-perf-") as folder:
        root = Path(folder)
        with up(root, fleet_text(nodes, gpus, create_ms=0)) as running:
            time.sleep(SETTLE_S)
            processes = process_figures(running.process.pid, running.data / "logs")
            latencies = asyncio.run(latency_of_pods(running))
    return Figures(processes, latencies)


def process_figures(parent: int, logs: Path) -> list[ProcessFigures]:
    """Every child process, with the start-up time that its own log reports."""
    figures = []
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            started_s, memory = ready_s(child, logs.glob("*.log")), child.memory_full_info()
            figures.append(ProcessFigures(service_name(child), started_s, memory.uss / 2**20, memory.rss / 2**20))
    return sorted(figures, key=lambda figure: figure.name)


async def latency_of_pods(running: Running) -> list[float]:
    """Milliseconds from the moment a manifest is in the folder to its `Bound` on the bus, one pod after another."""
    bus = await NatsBus.connect(running.url, name="perf", credentials=local_credentials(running.url))
    bound: asyncio.Queue[float] = asyncio.Queue()

    async def watch() -> None:
        async for batch in bus.read(Stream.BOOK, ("sluice.binding.>",)):
            for event in batch:
                if isinstance(event, Observed) and isinstance(event.entry.message, Bound):
                    bound.put_nowait(time.monotonic())

    latencies = []
    try:
        async with meanwhile(watch()):
            for number in range(PODS):
                began = time.monotonic()
                running.write(f"pod-{number:03}")
                latencies.append(((await asyncio.wait_for(bound.get(), BOUND_TIMEOUT_S)) - began) * 1000)
    finally:
        await bus.close()
    return latencies


def report(figures: Figures) -> str:
    lines = ["| process | start to ready, s | memory of its own, MiB | resident, MiB |", "|---|---|---|---|"]
    for figure in figures.processes:
        started = "-" if figure.started_s is None else f"{figure.started_s:.2f}"
        lines.append(f"| {figure.name} | {started} | {figure.unique_mib:.0f} | {figure.resident_mib:.0f} |")
    cuts = statistics.quantiles(figures.latencies_ms, n=100)
    times = ", ".join(f"p{at} {cuts[at - 1]:.1f} ms" for at in (50, 90, 99))
    heading = f"Manifest written to `Bound`, {len(figures.latencies_ms)} pods one after another, instant devices"
    return "\n".join([*lines, "", f"{heading}: {times}."])


def main(arguments: Sequence[str]) -> int:
    parser = options_of("system", __doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args(arguments)
    conclude("system", report(measure(options.nodes, options.gpus)), write=options.write)
    return 0
