"""Runs the benchmark of the node agent and checks its thresholds."""

import asyncio
from collections.abc import Sequence

from perf.figures import conclude, options_of
from perf.node_agent import parts, process
from perf.thresholds import AGENT_CORE_PERCENT, AGENT_PARALLEL_RATIO, AGENT_RESIDENT_MIB, Threshold, exit_code, table

IDLE_S = 30.0


def thresholds(making: process.Making, idle: process.Idle) -> list[Threshold]:
    return [
        Threshold("56 slices on 8 GPUs, times 7 on one", making.ratio, "at most", AGENT_PARALLEL_RATIO, "x", 2),
        Threshold("memory of an idle agent, resident", idle.resident_mib, "at most", AGENT_RESIDENT_MIB, "MiB", 1),
        Threshold("CPU of an idle agent, of one core", idle.core_percent, "at most", AGENT_CORE_PERCENT, "%", 2),
    ]


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
        "",
        table(thresholds(making, idle)),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("node_agent", __doc__)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    options = parser.parse_args(arguments)
    part = parts.measure()
    making, idle = asyncio.run(process.measure(options.idle_s))
    section = report(making, idle, part)
    conclude("node agent", section, write=options.write)
    return exit_code(thresholds(making, idle))
