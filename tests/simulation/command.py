"""The command line of the simulation. Its last line is exactly `seeds=N violations=N`."""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter

from simulation.world import Outcome, run_seed

SHOWN_MAX = 3
"""Failing seeds whose lines are printed."""
CHUNK = 10
SEED_S = 60
"""Over a hundred times what a seed needs."""


def main(arguments: Sequence[str]) -> int:
    """Run seeds. 0 when no invariant was violated, 1 otherwise."""
    options = _options(arguments)
    seeds = range(options.first, options.first + options.seeds)
    began = perf_counter()
    failing: list[Outcome] = []
    handled, virtual_s, most = 0, 0.0, 0
    for outcome in run_seeds(seeds, options.jobs, options.without, hashes=options.hashes):
        handled += outcome.handled
        virtual_s += outcome.virtual_s
        most = max(most, outcome.writes_most)
        if options.hashes:
            _say(f"seed {outcome.seed} {outcome.hash}")
        if outcome.violation:
            failing.append(outcome)
            _say(f"seed {outcome.seed}: {outcome.violation}")
    for outcome in failing[: 0 if options.quiet else SHOWN_MAX]:
        _show(outcome.seed, options.without)
    took = perf_counter() - began
    _say(
        f"{handled} events in {virtual_s:.0f} virtual s; {len(seeds) / took:.1f} seeds/s;"
        f" at most {most} writes for one request",
    )
    _say(f"seeds={len(seeds)} violations={len(failing)}")
    return 1 if failing else 0


def run_seeds(seeds: range, jobs: int, without: Sequence[str] = (), *, hashes: bool = False) -> Iterator[Outcome]:
    """The outcomes of many seeds, in their order."""
    run = partial(_run_bounded, without=tuple(without), hashes=hashes)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=CHUNK)


def _run_bounded(seed: int, without: Sequence[str], *, hashes: bool) -> Outcome:
    """One seed; a core that runs in a circle is a violation too, and must not stop the others."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(SEED_S)
    try:
        return run_seed(seed, "hash" if hashes else "nothing", without)
    finally:
        signal.alarm(0)


def _give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"a seed takes over {SEED_S} s")


def _show(seed: int, without: Sequence[str]) -> None:
    """The same seed once more, with every line kept."""
    outcome = run_seed(seed, "lines", without)
    _say(f"\n--- seed {seed} ---")
    for line in (*outcome.plan, "", *outcome.lines):
        _say(line)
    _say(f"--- seed {seed}: {outcome.violation}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/simulation", description=sys.modules[__name__].__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--without", action="append", default=[], help="a kind of fault to leave out")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each seed's lines")
    parser.add_argument("--quiet", action="store_true", help="print no lines of failing seeds")
    return parser.parse_args(arguments)
