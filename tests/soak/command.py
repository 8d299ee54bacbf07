"""The command line of the soak. Its last line is exactly `cycles=N kills=N leaks=N`: what was really done."""

import argparse
import gc
import sys
from collections.abc import Sequence
from random import Random

from factories.long_runs import end_in_order, saying
from soak.cycles import PLAIN, SHARED
from soak.outcome import Counts, SoakFailureError
from soak.parts import PARTS, Run
from soak.planted import PLANTED

LINE_MAX = 1500
"""Of a failure's report, so that a terminal is not flooded; the directory is kept and has it all."""


def main(arguments: Sequence[str]) -> int:
    """Soak. 0 when as many cycles were done as asked and nothing has leaked, 1 otherwise."""
    options = _options(arguments)
    end_in_order()
    if options.planted:
        PLANTED[options.planted][0]()
    counts, leaks, failed = Counts(), 0, False
    say_line = saying()

    def say(line: str) -> None:
        say_line(f"{counts.cycles:6} cycles  {line}")

    gc.collect()
    gc.freeze()  # the agents are forked from here: shared pages stay shared
    run = Run(options, counts, Random(options.seed), say)
    try:
        for name in options.parts:
            PARTS[name](run)
    except SoakFailureError as error:
        failed, leaks = True, len(error.leaks)
        for line in (*error.sides, f"cycle {counts.cycles}, seed {options.seed}: {error}", *error.leaks):
            sys.stderr.write(f"{line[:LINE_MAX]}\n")
    say(
        f"{counts.lives} lives, {counts.reboots} reboots, {counts.damages} damaged journals,"
        f" {counts.daemons} daemons killed, {counts.checks} comparisons"
    )
    sys.stdout.write(f"cycles={counts.cycles} kills={counts.kills} leaks={leaks}\n")
    return 1 if failed or leaks or counts.cycles < options.cycles else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    kinds = [kind.name for kind in (*PLAIN, *SHARED)]
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000, help="create/destroy cycles to be done at least")
    parser.add_argument("--seed", type=int, default=1, help="makes the mix repeatable")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds, help="kinds of cycles to enumerate")
    parser.add_argument("--stride", type=int, default=1, help="strike only every n-th step (a short dose)")
    parser.add_argument("--restarts", type=int, default=100, help="restarts under live slices and daemons")
    parser.add_argument("--rest-s", type=float, default=20.0, help="how long node and ledger may differ")
    parser.add_argument("--planted", default="", choices=["", *PLANTED], help="a defect that must be found")
    return parser.parse_args(arguments)
