"""Runs the benchmark of the node agent and checks its thresholds."""

import asyncio
from collections.abc import Sequence

from perf.figures import Threshold, conclude, options_of
from perf.node_agent import parts, process

IDLE_S = 30.0
PARALLEL_RATIO = 1.25
"""Eight GPUs are worked on at once: about the time of one, and some for one journal and two cores for all."""
RESIDENT_MIB = min(80.0, 1.2 * 56.0)
"""The ceiling, or a fifth above the mean of what was measured on two cores, whichever is less."""
CORE_PERCENT = min(1.0, 1.2 * 0.42)
"""Likewise."""


def report(making: process.Making, idle: process.Idle, part: parts.Parts) -> str:
    lines = [
        "| what | figure |",
        "|---|---|",
        f"| start of the process to `ready` | {idle.started_s:.2f} s |",
        f"| 7 slices on one GPU, {process.CREATE_MS} ms each | {making.seven_s:.2f} s |",
        f"| 56 slices on 8 GPUs, ordered at once | {making.all_s:.2f} s |",
        f"| one record in the journal, synced | {part.append_us:.0f} us, {part.journal_bytes:.0f} bytes |",
        f"| an MPS daemon's start, limits read back (stand-in) | {part.mps_start_ms:.0f} ms |",
        f"| an MPS daemon's end (stand-in) | {part.mps_stop_ms:.0f} ms |",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("node_agent", __doc__)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    options = parser.parse_args(arguments)
    part = parts.measure()
    making, idle = asyncio.run(process.measure(options.idle_s))
    promised = [
        Threshold("56 slices on 8 GPUs, times 7 on one", making.ratio, "at most", PARALLEL_RATIO, "x", 2),
        Threshold("memory of an idle agent, resident", idle.resident_mib, "at most", RESIDENT_MIB, "MiB", 1),
        Threshold("CPU of an idle agent, of one core", idle.core_percent, "at most", CORE_PERCENT, "%", 2),
    ]
    return conclude("node agent", report(making, idle, part), promised, write=options.write)
