"""Runs the benchmark of admission and checks its threshold."""

import asyncio
from collections.abc import Sequence

from perf.admission.reviews import Times, in_process, over_tls
from perf.figures import Threshold, conclude, options_of

P99_MS = 5.0
"""Creating a pod waits for it: the API server blocks on each review."""


def report(found: Sequence[Times]) -> str:
    rows = [
        f"| {each.what} | {each.kib:.1f} | {each.p50_ms:.3f} | {each.p99_ms:.3f} | "
        f"{'-' if each.cpu_p99_ms is None else f'{each.cpu_p99_ms:.3f}'} |"
        for each in found
    ]
    head = ["| review | question, KiB | p50, ms | p99, ms | p99 of CPU, ms |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def main(arguments: Sequence[str]) -> int:
    """What is promised is CPU of a review in this process, the largest pod included: the machine is shared."""
    parser = options_of("admission", __doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args(arguments)
    found = in_process(options.rounds)
    wire = asyncio.run(over_tls(options.rounds, at_once=50))
    promised = [Threshold(f"{each.what}, p99 of CPU", each.cpu_p99_ms, "at most", P99_MS, "ms") for each in found]
    return conclude("admission", report([*found, *wire]), promised, write=options.write)
