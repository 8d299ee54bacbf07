"""The command line of the simulation. Its last line is exactly `seeds=N violations=N`.

N is what was really done: when a process dies or is interrupted, it is less than what was asked for, and that is a
failure like a violation.
"""

import argparse
import gc
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter

from simulation.harness.record import Asked, Record, RecordError, open_record, taking_down
from simulation.harness.shrink import Shrunk, shrink
from simulation.plans.plan import Plan
from simulation.plans.plan_file import Kept, PlanFileError, read_plan, write_plan
from simulation.plans.variants import PLAIN, Variant
from simulation.world.trace import Keeping
from simulation.world.world import Outcome, run_plan

SHOWN_MAX = 3
"""Failing seeds that are made small, and whose lines are printed."""
CHUNK = 4
"""Seeds that a process is given at once: few, so that both end at the same time."""
SEED_S = 60
"""Of CPU time, so that a busy machine is no violation. Over a hundred times what a seed needs."""
SHRINK_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Run seeds, or one plan. 0 when all were run and no invariant was violated, 1 otherwise, 2 for a wrong command."""
    options = _options(arguments)
    try:
        plan = read_plan(options.plan).plan if options.plan is not None else None
        record = _opened(options)
        before, began = record.seeds, perf_counter()
        _run(plan, record, options)
    except (PlanFileError, RecordError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asked = 1 if plan is not None else options.seeds
    return _last_lines(record, asked, (record.seeds - before) / (perf_counter() - began))


def _opened(options: argparse.Namespace) -> Record:
    asked = Asked(options.first, _variant(options))
    return open_record(options.record, asked) if options.record is not None else Record("", asked)


def _run(plan: Plan | None, record: Record, options: argparse.Namespace) -> None:
    """Play what the record does not have, and show what of it all fails. Raises RecordError."""
    seeds = range(options.first + record.seeds, options.first + options.seeds)
    try:
        with taking_down(record, options.record) as take:
            for outcome in _outcomes(seeds, plan, options):
                take(outcome)
                if options.hashes:
                    _say(f"seed {outcome.seed} {outcome.hash}")
                if outcome.violation:
                    _say(f"seed {outcome.seed}: {outcome.violation}")
        for seed, violation in list(record.violations.items())[: 0 if options.quiet else SHOWN_MAX]:
            _show(plan if plan is not None else _variant(options).plan(seed), violation, options)
    except KeyboardInterrupt:
        _say("interrupted")
    except BrokenProcessPool as error:
        _say(f"a process that ran seeds has died: {error}")


def _last_lines(record: Record, asked: int, seeds_per_s: float) -> int:
    """What was really done, as a sentence and in the line that is exactly so. Returns the exit code."""
    _say(
        f"{record.events} events in {record.virtual_s:.0f} virtual s; {seeds_per_s:.1f} seeds/s;"
        f" at most {record.writes_most} writes for one request"
    )
    if record.seeds < asked:
        _say(f"only {record.seeds} of {asked} seeds were run")
    _say(f"seeds={record.seeds} violations={len(record.violations)}")
    return 1 if record.violations or record.seeds < asked else 0


def _outcomes(seeds: range, plan: Plan | None, options: argparse.Namespace) -> Iterator[Outcome]:
    keeping: Keeping = "hash" if options.hashes else "nothing"
    if plan is not None:
        yield _play_bounded(plan, keeping)
        return
    run = partial(run_bounded, variant=_variant(options), keeping=keeping)
    yield from run_seeds(seeds, options.jobs, run)


def run_seeds(seeds: range, jobs: int, run: "partial[Outcome]") -> Iterator[Outcome]:
    """What comes of many seeds, in their order. Raises BrokenProcessPool when a process that runs them dies."""
    gc.freeze()  # before workers are forked: looking for cycles in what is imported was a tenth of what a seed costs
    if jobs <= 1:
        yield from map(run, seeds)
        return
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, initializer=_leave_interrupts_to_the_parent) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=CHUNK)
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()  # they would go on with what is in their queue
            raise


def _leave_interrupts_to_the_parent() -> None:
    """A worker that is interrupted while it takes work out of their queue would leave it locked for all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_bounded(seed: int, variant: Variant = PLAIN, *, keeping: Keeping = "nothing") -> Outcome:
    """One seed; a core that runs in a circle is a violation too, and the other seeds go on."""
    return _play_bounded(variant.plan(seed), keeping)


def _variant(options: argparse.Namespace) -> Variant:
    return Variant(
        tuple(options.without),
        cluster=options.cluster,
        timed=options.timed,
        stormy=options.stormy,
        coinciding=options.coinciding,
        near=options.near,
        small=options.small,
    )


def _play_bounded(plan: Plan, keeping: Keeping) -> Outcome:
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, SEED_S)
    try:
        return run_plan(plan, keeping)
    except Exception as error:  # noqa: BLE001  # a world that cannot even be built is a finding of this seed alone
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(plan.seed, f"raised: {error!r} at {where.filename}:{where.lineno}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"a seed takes over {SEED_S} s of CPU time")


def _show(plan: Plan, violation: str, options: argparse.Namespace) -> None:
    """Make a failing plan small, and play what is left of it with every line kept."""
    ends = monotonic() + options.shrink_s
    least = shrink(plan, violation, lambda plan: _play_bounded(plan, "nothing").violation, lambda: monotonic() < ends)
    outcome = _play_bounded(least.plan, "lines")
    _say(f"\n--- seed {plan.seed}, the least of it that fails ---")
    for line in (*least.plan.lines(), "", *outcome.lines):
        _say(line)
    _say(_how_small(plan, least, options.shrink_s))
    if options.keep is not None:
        path = options.keep / f"seed-{plan.seed}.json"
        write_plan(path, Kept(least.violation, least.plan))
        _say(f"kept in {path}: play it again with --plan {path}")
    _say(f"--- seed {plan.seed}: {least.violation}\n")


def _how_small(plan: Plan, least: Shrunk, shrink_s: float) -> str:
    left = f"{len(least.plan.faults)} of {len(plan.faults)} faults, {len(least.plan.pods)} of {len(plan.pods)} pods"
    left += f" and {len(least.plan.nodes)} of {len(plan.nodes)} nodes are left after {least.tries} tries"
    return left if least.whole else f"{left}; the {shrink_s:g} s of --shrink-s were not enough to try everything"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/simulation", description="Run seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--without", action="append", default=[], help="a kind of fault to leave out")
    parser.add_argument("--timed", action="store_true", help="more pods want a part of the time, and nodes enforce it")
    parser.add_argument("--stormy", action="store_true", help="most faults come at once, in a few storms")
    parser.add_argument("--coinciding", action="store_true", help="most faults begin or end where another one does")
    parser.add_argument("--small", action="store_true", help="worlds of few pods and nodes: twice as many in a time")
    parser.add_argument("--near", action="store_true", help="no new worlds: neighbours of the plans that are kept")
    parser.add_argument("--cluster", action="store_true", help="their pods are those of a cluster, not of a folder")
    parser.add_argument("--plan", type=Path, help="play the plan in this file, and no seeds")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each seed's lines")
    parser.add_argument("--quiet", action="store_true", help="print no lines of failing seeds, and do not shrink them")
    parser.add_argument(
        "--shrink-s", type=float, default=SHRINK_S, help="how long to make one failing seed smaller; 0: show all of it"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the plans of what is left in there")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep in there what was played, and go on where that ends"
    )
    options = parser.parse_args(arguments)
    if options.record is not None and (options.plan is not None or options.hashes):
        parser.error("--record is of outcomes alone, and of seeds: it goes with neither --plan nor --hashes")
    moved = options.stormy or options.coinciding
    drawn = options.without or options.timed or moved or options.cluster or options.small
    if options.near and drawn:
        parser.error("--near goes with no other way to draw a world: it draws none")
    return options
