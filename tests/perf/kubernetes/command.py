"""Runs the benchmark of the watch of a large cluster and checks its thresholds."""

import asyncio
from collections.abc import Sequence

from perf.figures import Threshold, conclude, options_of
from perf.kubernetes.scenes import BEATS_PER_S, IDLE_S, Cost, Following, Restart, Size, follow, restart

SMALL = Size(nodes=50, others=90, ours=10)
LARGE = Size(nodes=5000, others=9000, ours=1000)
WAITING = Size(nodes=5000, others=0, ours=10_000, waiting=10_000)
EVENTS = 5000

TURN_MS = 50.0
"""The longest that the loop may be away: a broker's ping and a webhook in the same process wait so long."""
RESTART_TURN_MS = 200.0
"""Once, when everything that the bus remembers of 10,000 pods is compared with what is there."""
RATIO = 1.5
"""Nothing in an event depends on how much else there is, but the processor's caches do."""
RESIDENT_MIB = 1.2 * 132.0
"""A fifth above the highest of three runs on two cores that others used too; so are the following."""
START_CPU_S = 1.2 * 3.3
BEAT_US = 1.2 * 254.0
OTHER_US = 1.2 * 44.0
RESYNC_CPU_S = 1.2 * 0.9
RESTART_CPU_S = 1.2 * 8.5
IDLE_PERCENT = 1.0
"""Measured: 0.2 to 0.3; the kernel counts CPU in steps of 10 ms."""


def thresholds(small: Following, large: Following, again: Restart) -> list[Threshold]:
    """What is promised of a watch: of CPU, for the machine is shared."""
    steps = (large.beats.turn_ms, large.others.turn_ms, large.ours.turn_ms, large.relist.turn_ms)
    beat_us, few_us = large.beats.cpu_us, small.beats.cpu_us
    ours = large.ours.cpu_us / small.ours.cpu_us
    return [
        Threshold("memory with 5,000 nodes, highest", large.start.peak_mib, "at most", RESIDENT_MIB, "MiB", 1),
        Threshold("start, CPU until all is listed and said", large.start.cpu_s, "at most", START_CPU_S, "s", 2),
        Threshold("idle, CPU of one core", _percent(large.idle), "at most", IDLE_PERCENT, "%", 2),
        Threshold("a heartbeat of a node, CPU", beat_us, "at most", BEAT_US, "us", 0),
        Threshold("a heartbeat, 5,000 nodes against 50", beat_us / few_us, "at most", RATIO, "x", 2),
        Threshold("a change of others' pods, CPU", large.others.cpu_us, "at most", OTHER_US, "us", 0),
        Threshold("that, 10,000 pods against 100", large.others.cpu_us / small.others.cpu_us, "at most", RATIO, "x", 2),
        Threshold("a change of our pods, 1,000 against 10", ours, "at most", RATIO, "x", 2),
        Threshold("everything listed again, CPU", large.relist.cpu_s, "at most", RESYNC_CPU_S, "s", 2),
        Threshold("longest turn once it has begun, CPU", max(steps), "at most", TURN_MS, "ms", 1),
        Threshold("longest turn of a restart among 10,000, CPU", again.turn_ms, "at most", RESTART_TURN_MS, "ms", 1),
        Threshold("restart with 10,000 that wait, CPU", again.cpu_s, "at most", RESTART_CPU_S, "s", 2),
    ]


def _percent(cost: Cost) -> float:
    return cost.cpu_s / cost.wall_s * 100


def _row(what: str, few: Cost, many: Cost) -> str:
    each = (f"{cost.cpu_us:,.0f} us | {cost.events / cost.wall_s:,.0f}" for cost in (few, many))
    return f"| {what} | {' | '.join(each)} | {many.turn_ms:.1f} ms |"


def report(small: Following, large: Following, again: Restart) -> str:
    few, many = small.start, large.start
    lines = [
        "| | 100 pods, 50 nodes | 10,000 pods, 5,000 nodes |",
        "|---|---|---|",
        f"| lists, on the wire | {few.list_mib:.1f} MiB | {many.list_mib:.1f} MiB |",
        f"| start until all is listed and said, by the clock | {few.wall_s:.1f} s | {many.wall_s:.1f} s |",
        f"| its CPU | {few.cpu_s:.2f} s | {many.cpu_s:.2f} s |",
        f"| memory then | {few.resident_mib:.0f} MiB | {many.resident_mib:.0f} MiB |",
        f"| memory at its highest until then | {few.peak_mib:.0f} MiB | {many.peak_mib:.0f} MiB |",
        f"| idle, CPU of one core | {_percent(small.idle):.2f} % | {_percent(large.idle):.2f} % |",
        f"| {BEATS_PER_S} heartbeats/s, CPU | {_percent(small.beats):.1f} % | {_percent(large.beats):.1f} % |",
        f"| everything listed again, CPU | {small.relist.cpu_s:.2f} s | {large.relist.cpu_s:.2f} s |",
        f"| {3 * EVENTS:,} events, on the wire | {small.watch_mib:.0f} MiB | {large.watch_mib:.0f} MiB |",
        "",
        "| event | CPU, small | events/s, small | CPU, large | events/s, large | longest turn, large |",
        "|---|---|---|---|---|---|",
        _row(f"heartbeat of a node, {BEATS_PER_S}/s offered", small.beats, large.beats),
        _row("change of others' pods, as fast as it goes", small.others, large.others),
        _row("change of our pods, as fast as it goes", small.ours, large.ours),
        "",
        "| killed and restarted while 10,000 pods wait | |",
        "|---|---|",
        f"| a pod that is created meanwhile has its patch after | {again.first_bound_s:.1f} s |",
        f"| all that wait were published again after | {again.synced_s:.1f} s |",
        f"| CPU | {again.cpu_s:.2f} s |",
        f"| longest turn, CPU | {again.turn_ms:.0f} ms ({again.longest_what}) |",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("kubernetes", __doc__)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    parser.add_argument("--events", type=int, default=EVENTS)
    options = parser.parse_args(arguments)
    small = asyncio.run(follow(SMALL, options.idle_s, options.events))
    large = asyncio.run(follow(LARGE, options.idle_s, options.events))
    again = asyncio.run(restart(WAITING))
    promised = thresholds(small, large, again)
    return conclude("kubernetes", report(small, large, again), promised, write=options.write)
